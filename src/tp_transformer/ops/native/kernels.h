/* What the kernels share: vectors of 8 floats (AVX2 and FMA), their sums, exp and softmax. */

#ifndef TPT_KERNELS_H
#define TPT_KERNELS_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define SHARED static __attribute__((unused, noinline)) /* not used by all units */
#define EXPORT __attribute__((visibility("default")))
#define WIDTH 8 /* floats of a vector */

typedef int64_t Int;

enum { PLAIN = 0, RELU = 1, ADDED = 2 }; /* flags: what is done with the outputs of a map */

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

/* Copy a square of 8 times 8 numbers, transposed. */
INLINE void copy_transposed8(const float *from, Int from_row, float *to, Int to_row) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps(from + i * from_row);
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0x44);
            a[i + 2 * j + 1] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_row, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_row, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}

/* Replace scores by exp of their distance from the largest, times `scale`, and those from `n` to
   `padded`, a multiple of 8, by 0; returns the sum: a softmax without its division. */
INLINE float exponentials(float *scores, Int n, Int padded, float scale, float *largest) {
    for (Int j = n; j < padded; j++) scores[j] = -INFINITY;
    __m256 most = _mm256_set1_ps(-INFINITY), total = _mm256_setzero_ps();
    for (Int j = 0; j < padded; j += WIDTH) most = _mm256_max_ps(most, _mm256_loadu_ps(scores + j));
    *largest = max8(most);
    __m256 shift = _mm256_set1_ps(*largest), factor = _mm256_set1_ps(scale);
    for (Int j = 0; j < padded; j += WIDTH) {
        __m256 below = _mm256_sub_ps(_mm256_loadu_ps(scores + j), shift);
        _mm256_storeu_ps(scores + j, exp8(_mm256_mul_ps(below, factor)));
    }
    for (Int j = n; j < padded; j++) scores[j] = 0;
    for (Int j = 0; j < padded; j += WIDTH)
        total = _mm256_add_ps(total, _mm256_loadu_ps(scores + j));
    return sum8(total);
}

#endif
