/* Products of small matrices of floats in any layout. */

#ifndef TPT_PRODUCTS_H
#define TPT_PRODUCTS_H

#include "kernels.h"

/* c (rows, 8 * n_vectors) = a b, or c + a b; a[row, k] is a[row * a_row + k * a_k]. */
INLINE void product_tile(int rows, int n_vectors, Int depth, const float *a, Int a_row, Int a_k,
                         const float *b, Int b_row, float *c, Int c_row, int adds) {
    __m256 sums[6][2];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n_vectors; j++)
            sums[i][j] = adds ? _mm256_loadu_ps(c + i * c_row + j * WIDTH) : _mm256_setzero_ps();
    for (Int k = 0; k < depth; k++) {
        __m256 right[2];
        for (int j = 0; j < n_vectors; j++) right[j] = _mm256_loadu_ps(b + k * b_row + j * WIDTH);
        for (int i = 0; i < rows; i++) {
            __m256 left = _mm256_broadcast_ss(a + i * a_row + k * a_k);
            for (int j = 0; j < n_vectors; j++)
                sums[i][j] = _mm256_fmadd_ps(left, right[j], sums[i][j]);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n_vectors; j++)
            _mm256_storeu_ps(c + i * c_row + j * WIDTH, sums[i][j]);
}

INLINE void tile_row(int rows, Int columns, Int depth, const float *a, Int a_row, Int a_k,
                     const float *b, Int b_row, float *c, Int c_row, int adds) {
    Int j = 0;
    for (; j + 2 * WIDTH <= columns; j += 2 * WIDTH)
        product_tile(rows, 2, depth, a, a_row, a_k, b + j, b_row, c + j, c_row, adds);
    if (j < columns) product_tile(rows, 1, depth, a, a_row, a_k, b + j, b_row, c + j, c_row, adds);
}

/* The same for any number of rows; the number of columns is a multiple of 8. */
static void multiply(Int rows, Int columns, Int depth, const float *a, Int a_row, Int a_k,
                     const float *b, Int b_row, float *c, Int c_row, int adds) {
    Int i = 0;
    for (; i + 6 <= rows && rows - i != 8; i += 6) /* the last 8 rows are twice 4 */
        tile_row(6, columns, depth, a + i * a_row, a_row, a_k, b, b_row, c + i * c_row, c_row, adds);
    if (rows - i == 8) {
        tile_row(4, columns, depth, a + i * a_row, a_row, a_k, b, b_row, c + i * c_row, c_row, adds);
        i += 4;
    }
    a += i * a_row, c += i * c_row;
    switch (rows - i) {
    case 5: tile_row(5, columns, depth, a, a_row, a_k, b, b_row, c, c_row, adds); break;
    case 4: tile_row(4, columns, depth, a, a_row, a_k, b, b_row, c, c_row, adds); break;
    case 3: tile_row(3, columns, depth, a, a_row, a_k, b, b_row, c, c_row, adds); break;
    case 2: tile_row(2, columns, depth, a, a_row, a_k, b, b_row, c, c_row, adds); break;
    case 1: tile_row(1, columns, depth, a, a_row, a_k, b, b_row, c, c_row, adds); break;
    }
}

#endif
