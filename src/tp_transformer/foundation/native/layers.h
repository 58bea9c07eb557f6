/* Affine maps and normalisations in float32; weights are read as PyTorch stores them, (out, in). */

#ifndef TPT_LAYERS_H
#define TPT_LAYERS_H

#include <stdlib.h>

#include "int8.h"
#include "kernels.h"

#define EPSILON 1e-5f /* of all normalisations */
#define MOST_DEPTH 512
#define AT_ONCE 48 /* rows whose states stay in the cache while weights are read */

enum { PLAIN = 0, RELU = 1, ADDED = 2 }; /* flags: what is done with the outputs of a map */

typedef struct {
    const float *weight, *bias;
    const Int8Map *packed; /* the map in int8, instead of the weight and the bias */
} Affine; /* also the gain and the bias of a normalisation */

typedef struct {
    Affine norms[4]; /* before self-attention, cross-attention, feed-forward layer; of the output */
    Affine self_in, self_out, cross_in, cross_out, expand, contract; /* encoders: without cross */
} Layer;

/* Sums of four vectors. */
INLINE __m128 sums4(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

INLINE void finish(float *out, __m128 sums, const float *bias, int kind) {
    if (bias) sums = _mm_add_ps(sums, _mm_loadu_ps(bias));
    if (kind & ADDED) sums = _mm_add_ps(sums, _mm_loadu_ps(out));
    if (kind & RELU) sums = _mm_max_ps(_mm_setzero_ps(), sums); /* this order keeps NaN */
    _mm_storeu_ps(out, sums);
}

INLINE __m256 product(const float *a, const float *b, Int d) {
    __m256 sum = _mm256_setzero_ps();
    for (Int i = 0; i < d; i += WIDTH)
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), sum);
    return sum;
}

/* Four outputs of some rows; rows of states and of weights are `stride` apart. */
INLINE void columns4(int rows, Int depth, Int stride, const float *in, const float *weight,
                     const float *bias, float *out, Int n_out, int kind) {
    __m256 sums[3][4];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < 4; j++) sums[i][j] = _mm256_setzero_ps();
    for (Int k = 0; k < depth; k += WIDTH) {
        __m256 left[3];
        for (int i = 0; i < rows; i++) left[i] = _mm256_loadu_ps(in + i * stride + k);
        for (int j = 0; j < 4; j++) {
            __m256 right = _mm256_loadu_ps(weight + j * stride + k);
            for (int i = 0; i < rows; i++) sums[i][j] = _mm256_fmadd_ps(left[i], right, sums[i][j]);
        }
    }
    for (int i = 0; i < rows; i++)
        finish(out + i * n_out, sums4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]), bias, kind);
}

/* All outputs in groups of four, for a part of the depth. */
static void partial(Int n_rows, Int depth, Int stride, Int n_out, const float *in,
                    const float *weight, const float *bias, float *out, int kind) {
    for (Int column = 0; column + 4 <= n_out; column += 4, weight += 4 * stride) {
        const float *own = bias ? bias + column : NULL, *states = in;
        float *to = out + column;
        Int row = 0;
        for (; row + 3 <= n_rows; row += 3, states += 3 * stride, to += 3 * n_out)
            columns4(3, depth, stride, states, weight, own, to, n_out, kind);
        if (n_rows - row == 2) columns4(2, depth, stride, states, weight, own, to, n_out, kind);
        if (n_rows - row == 1) columns4(1, depth, stride, states, weight, own, to, n_out, kind);
    }
}

/* out (row, n_out) = in (row, depth) times the transposed weight, plus bias. The depth is a multiple
   of 8; without a bias, n_out need not be a multiple of 4. Of several rows, only a part of the depth
   is computed at a time, whose weights stay in the first-level cache. */
static void affine(Int n_rows, Int depth, Int n_out, const float *in, Affine map, float *out,
                   int kind) {
    if (map.packed) {
        int8_affine(n_rows, in, map.packed, out, kind);
        return;
    }
    Int most = n_rows < 3 ? depth : MOST_DEPTH;
    for (Int start = 0; start < depth; start += most) {
        Int part = depth - start < most ? depth - start : most;
        int adds = start ? ADDED : kind & ADDED, last = start + part == depth ? kind & RELU : 0;
        partial(n_rows, part, depth, n_out, in + start, map.weight + start, start ? NULL : map.bias,
                out, adds | last);
    }
    for (Int column = n_out / 4 * 4; column < n_out; column++)
        for (Int row = 0; row < n_rows; row++)
            out[row * n_out + column] =
                sum8(product(in + row * depth, map.weight + column * depth, depth));
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
