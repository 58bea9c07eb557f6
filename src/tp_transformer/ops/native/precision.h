/* Numbers in memory, in float32 or bfloat16. */

#ifndef TPT_PRECISION_H
#define TPT_PRECISION_H

#include "kernels.h"

enum { FLOAT32, BFLOAT16 };

INLINE __m256 read8(const char *data, Int index, Int kind) {
    if (kind == FLOAT32) return _mm256_loadu_ps((const float *)data + index);
    __m128i halves = _mm_loadu_si128((const __m128i *)((const uint16_t *)data + index));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

INLINE float read1(const char *data, Int index, Int kind) {
    if (kind == FLOAT32) return ((const float *)data)[index];
    uint32_t bits = (uint32_t)((const uint16_t *)data)[index] << 16;
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)bits)));
}

/* Rounds to nearest even; NaN stays NaN. */
INLINE void write8(char *data, Int index, __m256 numbers, Int kind) {
    if (kind == FLOAT32) {
        _mm256_storeu_ps((float *)data + index, numbers);
        return;
    }
    __m256i bits = _mm256_castps_si256(numbers);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(numbers, numbers, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), is_nan);
    __m128i low = _mm256_castsi256_si128(rounded), high = _mm256_extracti128_si256(rounded, 1);
    _mm_storeu_si128((__m128i *)((uint16_t *)data + index), _mm_packus_epi32(low, high));
}

#endif
