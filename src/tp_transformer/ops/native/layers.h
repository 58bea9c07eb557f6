/* Affine maps and normalisations in float32; weights are read as PyTorch stores them, (out, in). */

#ifndef TPT_LAYERS_H
#define TPT_LAYERS_H

#include "distinct.h"
#include "panels.h"

#define EPSILON 1e-5f /* of all normalisations */
#define MOST_HIDDEN 512
#define MANY 12        /* rows from which on weights are copied to panels */
#define AT_ONCE 240    /* rows whose states stay in the second-level cache */

/* Sums of four vectors. */
INLINE __m128 sums4(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

INLINE __m256 product(const float *a, const float *b, Int d) {
    __m256 sum = _mm256_setzero_ps();
    for (Int i = 0; i < d; i += WIDTH)
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), sum);
    return sum;
}

/* One output of up to three rows. Four sums each, because a multiplication starts before the
   previous one has ended. */
INLINE void column(int rows, Int depth, const float *in, Int in_row, const float *weight, float bias,
                   float *out, Int out_row, int kind) {
    __m256 sums[3][4];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < 4; j++) sums[i][j] = _mm256_setzero_ps();
    Int k = 0;
    for (; k + 4 * WIDTH <= depth; k += 4 * WIDTH)
        for (int j = 0; j < 4; j++) {
            __m256 right = _mm256_loadu_ps(weight + k + j * WIDTH);
            for (int i = 0; i < rows; i++) {
                __m256 left = _mm256_loadu_ps(in + i * in_row + k + j * WIDTH);
                sums[i][j] = _mm256_fmadd_ps(left, right, sums[i][j]);
            }
        }
    for (; k < depth; k += WIDTH)
        for (int i = 0; i < rows; i++)
            sums[i][0] = _mm256_fmadd_ps(_mm256_loadu_ps(in + i * in_row + k),
                                         _mm256_loadu_ps(weight + k), sums[i][0]);
    for (int i = 0; i < rows; i++) {
        float *to = out + i * out_row;
        float sum = bias + sum8(_mm256_add_ps(_mm256_add_ps(sums[i][0], sums[i][1]),
                                              _mm256_add_ps(sums[i][2], sums[i][3])));
        if (kind & ADDED) sum += *to;
        *to = kind & RELU && sum < 0 ? 0 : sum; /* NaN stays NaN */
    }
}

/* All outputs of a few rows. The weights are read once and in their order, at the speed of the
   memory: reading four rows of them at a time took 1.4 times as long. */
static void by_columns(Int n_rows, Int depth, Int stride, Int n_out, const float *in, Int in_row,
                       Affine map, float *out, Int out_row, int kind) {
    for (Int j = 0; j < n_out; j++) {
        const float *weight = map.weight + j * stride, *states = in;
        float bias = map.bias ? map.bias[j] : 0, *to = out + j;
        Int row = 0;
        for (; row + 3 <= n_rows; row += 3, states += 3 * in_row, to += 3 * out_row)
            column(3, depth, states, in_row, weight, bias, to, out_row, kind);
        if (n_rows - row == 2) column(2, depth, states, in_row, weight, bias, to, out_row, kind);
        if (n_rows - row == 1) column(1, depth, states, in_row, weight, bias, to, out_row, kind);
    }
}

/* out (row, n_out) = in (row, depth) times the transposed weight, plus bias; rows of weights are
   `stride` apart. The depth is a multiple of 8. The order of additions depends on whether there are
   at least MANY rows. With a branch instead of a choice of functions, GCC 12 makes a copy of
   `by_columns` that takes 1.6 times as long for one row. */
static void affine_part(Int n_rows, Int depth, Int stride, Int n_out, const float *in, Affine map,
                        float *out, int kind) {
    (n_rows < MANY ? by_columns : by_panels)(n_rows, depth, stride, n_out, in, depth, map, out,
                                             n_out, kind);
}

static void affine(Int n_rows, Int depth, Int n_out, const float *in, Affine map, float *out,
                   int kind) {
    if (map.int8)
        int8_affine(n_rows, in, map.int8, out, kind);
    else
        affine_part(n_rows, depth, depth, n_out, in, map, out, kind);
}

/* Blocks of rows that are computed one after the other or by threads. They have almost the same size
   and, unless there is one only, at least MANY rows, so that their number changes no result. */
INLINE Int n_blocks_of(Int n_rows, Int n_threads) {
    Int wanted = (n_rows + AT_ONCE * n_threads - 1) / (AT_ONCE * n_threads) * n_threads;
    Int most = n_rows < 2 * MANY ? 1 : n_rows / MANY;
    return wanted < most ? wanted : most;
}

/* How many rows to compute for all: the distinct ones, but at least MANY if there are so many, so that
   the order of additions stays the same. */
INLINE Int n_computed(const Distinct *found) {
    Int least = found->n < MANY ? found->n : MANY;
    return found->n_distinct < least ? least : found->n_distinct;
}

INLINE Int first_of_block(Int n_rows, Int n_blocks, Int block) { return n_rows * block / n_blocks; }

INLINE Int size_of_block(Int n_rows, Int n_blocks, Int block) {
    return first_of_block(n_rows, n_blocks, block + 1) - first_of_block(n_rows, n_blocks, block);
}

/* Hidden units of a feed-forward layer that are computed at a time, so that they stay in the
   second-level cache; for a few rows, weights should be read in their order instead. In int8, the
   scale of a row depends on all of them. */
INLINE Int hidden_at_once(Int n_rows, Int d_ff, const Layer *layer) {
    int is_int8 = layer->expand.int8 || layer->contract.int8;
    return is_int8 || n_rows < MANY || d_ff < MOST_HIDDEN ? d_ff : MOST_HIDDEN;
}

/* Add the feed-forward layer of normalised rows to their states; `hidden` has the size of
   `hidden_at_once` for each row. */
static void feed_forward(Int n_rows, Int d_model, Int d_ff, const float *normal, const Layer *layer,
                         float *hidden, float *state) {
    Int most = hidden_at_once(n_rows, d_ff, layer);
    if (most == d_ff) {
        affine(n_rows, d_model, d_ff, normal, layer->expand, hidden, RELU);
        affine(n_rows, d_ff, d_model, hidden, layer->contract, state, ADDED);
        return;
    }
    for (Int start = 0; start < d_ff; start += most) {
        Int n = d_ff - start < most ? d_ff - start : most;
        Affine expand = outputs_from(layer->expand, start, d_model);
        Affine contract = {layer->contract.weight + start, start ? NULL : layer->contract.bias, NULL,
                           layer->contract.panels ? layer->contract.panels + start * PANEL : NULL};
        affine(n_rows, d_model, n, normal, expand, hidden, RELU);
        affine_part(n_rows, n, d_ff, d_model, hidden, contract, state, ADDED);
    }
}

static void normalise(Int n_rows, Int d_model, const float *in, Affine norm, float *out) {
    for (Int row = 0; row < n_rows; row++, in += d_model, out += d_model) {
        __m256 total = _mm256_setzero_ps(), squares = _mm256_setzero_ps();
        for (Int i = 0; i < d_model; i += WIDTH)
            total = _mm256_add_ps(total, _mm256_loadu_ps(in + i));
        __m256 mean = _mm256_set1_ps(sum8(total) / (float)d_model);
        for (Int i = 0; i < d_model; i += WIDTH) {
            __m256 away = _mm256_sub_ps(_mm256_loadu_ps(in + i), mean);
            squares = _mm256_fmadd_ps(away, away, squares);
        }
        __m256 scale = _mm256_set1_ps(1 / sqrtf(sum8(squares) / (float)d_model + EPSILON));
        for (Int i = 0; i < d_model; i += WIDTH) {
            __m256 unit = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(in + i), mean), scale);
            __m256 gain = _mm256_loadu_ps(norm.weight + i), bias = _mm256_loadu_ps(norm.bias + i);
            _mm256_storeu_ps(out + i, _mm256_fmadd_ps(unit, gain, bias));
        }
    }
}

#endif
