/* Cross-attention without keys and values.

   The score of a query q for a source state e is q · (K e), which is (K' q) · e, and the filler is the
   weighted sum of V e, which is V times the weighted sum of e; K and V are the maps of a head and K'
   is the transpose. The bias of the keys adds the same to all scores of a query, and the bias of the
   values is added to the filler. For a few steps this takes fewer operations than the keys and values
   of a long source, and it reads one state of each position instead of a key and a value for each
   layer. */

#include <stdlib.h>

#include "absorbed.h"
#include "panels.h"
#include "products.h"

#define ROWS 16 /* rows at a time, whose vectors of all heads stay in the second-level cache */

/* Dot products of up to four rows of a and three of b. */
INLINE void dot_tile(int n_a, int n_b, Int d, const float *a, Int a_row, const float *b, Int b_row,
                     float *out, Int out_row) {
    __m256 sums[4][3];
    for (int i = 0; i < n_a; i++)
        for (int j = 0; j < n_b; j++) sums[i][j] = _mm256_setzero_ps();
    for (Int k = 0; k < d; k += WIDTH) {
        __m256 right[3];
        for (int j = 0; j < n_b; j++) right[j] = _mm256_loadu_ps(b + j * b_row + k);
        for (int i = 0; i < n_a; i++) {
            __m256 left = _mm256_loadu_ps(a + i * a_row + k);
            for (int j = 0; j < n_b; j++) sums[i][j] = _mm256_fmadd_ps(left, right[j], sums[i][j]);
        }
    }
    for (int i = 0; i < n_a; i++)
        for (int j = 0; j < n_b; j++) out[i * out_row + j] = sum8(sums[i][j]);
}

INLINE void dot_columns(int n_b, Int n_a, Int d, const float *a, Int a_row, const float *b,
                        Int b_row, float *out, Int out_row) {
    Int i = 0;
    for (; i + 4 <= n_a; i += 4)
        dot_tile(4, n_b, d, a + i * a_row, a_row, b, b_row, out + i * out_row, out_row);
    a += i * a_row, out += i * out_row;
    switch (n_a - i) {
    case 3: dot_tile(3, n_b, d, a, a_row, b, b_row, out, out_row); break;
    case 2: dot_tile(2, n_b, d, a, a_row, b, b_row, out, out_row); break;
    case 1: dot_tile(1, n_b, d, a, a_row, b, b_row, out, out_row); break;
    }
}

/* out (row of a, row of b) = dot products of rows of d floats, a multiple of 8. */
static void dots(Int n_a, Int n_b, Int d, const float *a, Int a_row, const float *b, Int b_row,
                 float *out, Int out_row) {
    Int j = 0;
    for (; j + 3 <= n_b; j += 3)
        dot_columns(3, n_a, d, a, a_row, b + j * b_row, b_row, out + j, out_row);
    if (n_b - j == 2) dot_columns(2, n_a, d, a, a_row, b + j * b_row, b_row, out + j, out_row);
    if (n_b - j == 1) dot_columns(1, n_a, d, a, a_row, b + j * b_row, b_row, out + j, out_row);
}

/* Replace scores by their softmax, after a multiplication by `scale`. There is room for a multiple
   of 8. */
static void softmax(float *scores, Int n, float scale) {
    float largest, total = exponentials(scores, n, rounded_up(n), scale, &largest);
    __m256 inverse = _mm256_set1_ps(1 / total);
    for (Int j = 0; j < n; j += WIDTH)
        _mm256_storeu_ps(scores + j, _mm256_mul_ps(_mm256_loadu_ps(scores + j), inverse));
}

/* Replace the vectors of all heads of a row, K' q, by the weighted sums of the source. Meanwhile the
   source of the next row is fetched to the second-level cache. */
static void attend_to_source(Int n_heads, Int d_head, Source source, Source next, float *scores,
                             float *vectors) {
    Int d = n_heads * d_head, padded = rounded_up(source.length), line = 0;
    Int n_lines = next.length * d / (2 * WIDTH);
    dots(n_heads, source.length, d, vectors, d, source.states, d, scores, padded);
    for (Int head = 0; head < n_heads; head++)
        softmax(scores + head * padded, source.length, 1 / sqrtf((float)d_head));
    for (Int i = 0; i < d; i += 2 * WIDTH) {
        for (; line * d < n_lines * (i + 2 * WIDTH); line++)
            _mm_prefetch((const char *)(next.states + line * 2 * WIDTH), _MM_HINT_T1);
        multiply(n_heads, d - i < 2 * WIDTH ? d - i : 2 * WIDTH, source.length, scores, padded, 1,
                 source.states + i, d, vectors + i, d, 0);
    }
}

int absorbed_attention(Int n_rows, Int n_heads, Int d_head, const float *queries, Int query_row,
                       const Source *sources, const float *panels, const float *bias,
                       float *fillers) {
    Int d = n_heads * d_head, longest = 0;
    Int key_size = whole_panels(d) * d_head, value_size = whole_panels(d_head) * d;
    for (Int row = 0; row < n_rows; row++)
        if (sources[row].length > longest) longest = sources[row].length;
    float *vectors = malloc((ROWS * n_heads * d + n_heads * rounded_up(longest)) * sizeof(float));
    if (!vectors) return 1;
    for (Int first = 0; first < n_rows; first += ROWS) {
        Int n = n_rows - first < ROWS ? n_rows - first : ROWS;
        for (Int head = 0; head < n_heads; head++) {
            Affine key = {NULL, NULL, NULL, panels + head * key_size};
            by_panels(n, d_head, d_head, d, queries + first * query_row + head * d_head, query_row,
                      key, vectors + head * d, n_heads * d, PLAIN);
        }
        for (Int row = 0; row < n; row++)
            attend_to_source(n_heads, d_head, sources[first + row],
                             first + row + 1 < n_rows ? sources[first + row + 1] : (Source){NULL, 0},
                             vectors + ROWS * n_heads * d, vectors + row * n_heads * d);
        for (Int head = 0; head < n_heads; head++) {
            Affine value = {NULL, bias + d + head * d_head, NULL,
                            panels + n_heads * key_size + head * value_size};
            by_panels(n, d, d, d_head, vectors + head * d, n_heads * d, value,
                      fillers + first * d + head * d_head, d, PLAIN);
        }
    }
    free(vectors);
    return 0;
}
