/* Newton-Schulz iterations on symmetric matrices, for the optimizer Muon.

   All matrices are polynomials of the first one, so they commute and their products are symmetric:
   only the upper half of a product is computed. */

#include <stdlib.h>

#include "parallel.h"
#include "products.h"

#define PANEL 16 /* columns at a time, which stay in the first-level cache */

typedef struct {
    Int n, n_rounds;
    const float *coefficients, *squares;
    float *totals;
} Work;

static void symmetric_product(Int n, const float *a, const float *b, float *c) {
    for (Int first = 0; first < n; first += PANEL) {
        Int columns = n - first < PANEL ? n - first : PANEL;
        multiply(first + columns, columns, n, a, n, 1, b + first, n, c + first, n, 0);
    }
    for (Int row = 0; row < n; row++)
        for (Int column = 0; column < row; column++) c[row * n + column] = c[column * n + row];
}

/* factor = a + b square + c square^2, the factor by which a round multiplies a matrix. */
static void set_factor(const Work *work, const float *square, float *factor) {
    Int n = work->n;
    const float *by = work->coefficients;
    symmetric_product(n, square, square, factor);
    for (Int i = 0; i < n * n; i++) factor[i] = by[1] * square[i] + by[2] * factor[i];
    for (Int i = 0; i < n; i++) factor[i * n + i] += by[0];
}

/* total = the product of the factors of all rounds. */
static int run_matrix(void *argument, Int number) {
    const Work *work = argument;
    Int n = work->n, size = n * n;
    float *total = work->totals + number * size;
    float *square = malloc(3 * size * sizeof(float));
    if (!square) return 1;
    float *factor = square + size, *other = factor + size;
    memcpy(square, work->squares + number * size, size * sizeof(float));
    set_factor(work, square, total);
    memcpy(factor, total, size * sizeof(float));
    for (Int round = 1; round < work->n_rounds; round++) {
        symmetric_product(n, factor, square, other);
        symmetric_product(n, other, factor, square);
        set_factor(work, square, factor);
        symmetric_product(n, factor, total, other);
        memcpy(total, other, size * sizeof(float));
    }
    free(square);
    return 0;
}

/* Of `n` matrices with `n_rows` rows each, a multiple of 8. */
EXPORT int newton_schulz(Int n, Int n_rows, Int n_rounds, Int n_threads, const float *coefficients,
                         const float *squares, float *totals) {
    Work work = {n_rows, n_rounds, coefficients, squares, totals};
    return in_parallel(&work, run_matrix, n, n_threads);
}
