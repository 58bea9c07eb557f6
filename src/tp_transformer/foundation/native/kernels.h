/* What the kernels share: vectors of 8 floats (AVX2 and FMA), exp, and products of small matrices. */

#ifndef TPT_KERNELS_H
#define TPT_KERNELS_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))
#define WIDTH 8 /* floats of a vector */

typedef int64_t Int;

INLINE Int rounded_up(Int n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

/* exp of numbers that are at most about 0, within 2 units in the last place; NaN stays NaN. */
INLINE __m256 exp8(__m256 x) {
    x = _mm256_max_ps(_mm256_set1_ps(-87.0f), x); /* this order of operands keeps NaN */
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 f = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    f = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), f);
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 720));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
}

INLINE float sum8(__m256 x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

INLINE float max8(__m256 x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

/* c (rows, 8 * n_vectors) = a b, or c + a b; a[row, k] is a[row * a_row + k * a_k]. */
INLINE void tile(int rows, int n_vectors, Int depth, const float *a, Int a_row, Int a_k,
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
        tile(rows, 2, depth, a, a_row, a_k, b + j, b_row, c + j, c_row, adds);
    if (j < columns) tile(rows, 1, depth, a, a_row, a_k, b + j, b_row, c + j, c_row, adds);
}

/* The same for any number of rows; the number of columns is a multiple of 8. */
static void multiply(Int rows, Int columns, Int depth, const float *a, Int a_row, Int a_k,
                     const float *b, Int b_row, float *c, Int c_row, int adds) {
    Int i = 0;
    for (; i + 6 <= rows; i += 6)
        tile_row(6, columns, depth, a + i * a_row, a_row, a_k, b, b_row, c + i * c_row, c_row, adds);
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
