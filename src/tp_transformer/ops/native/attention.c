/* Attention within packed rows: equations 2 and 3 of the paper, and their gradient.

   Queries, keys and values are (head, position, d_head) with any strides of heads and positions, in
   float32 or bfloat16; everything is computed in float32. A task is one head of one row: its
   vectors are copied next to each other, and a few queries at a time attend to all keys, so that
   their weights stay in the cache. The gradient recomputes the weights from the logarithm of the
   sum of each softmax. */

#include <stdlib.h>

#include "attention.h"
#include "parallel.h"
#include "precision.h"
#include "products.h"

#define LEAST_WORK 1000000 /* products that are worth the start of a thread */

/* Copy a vector to floats, times a factor, with zeros up to a multiple of 8. */
INLINE void load(const Attention *work, View view, Int head, Int position, float factor, float *to) {
    Int first = head * view.head + position * view.position, d = work->d_head;
    if (work->kind == FLOAT32) {
        const float *from = (const float *)view.data + first;
        for (Int i = 0; i < d; i++) to[i] = from[i] * factor;
    } else {
        const uint16_t *from = (const uint16_t *)view.data + first;
        for (Int i = 0; i < d; i++) {
            uint32_t bits = (uint32_t)from[i] << 16;
            float number;
            memcpy(&number, &bits, 4);
            to[i] = number * factor;
        }
    }
    for (Int i = d; i < rounded_up(d); i++) to[i] = 0;
}

/* Write a vector of floats, times a factor. */
INLINE void store(const Attention *work, View to, Int head, Int position, const float *from,
                  float factor) {
    Int d = work->d_head, first = head * to.head + position * to.position;
    if (work->kind == FLOAT32) {
        for (Int i = 0; i < d; i++) ((float *)to.data)[first + i] = from[i] * factor;
        return;
    }
    for (Int i = 0; i < d; i++) {
        float number = from[i] * factor;
        uint32_t bits;
        memcpy(&bits, &number, 4);
        uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; /* to nearest even */
        ((uint16_t *)to.data)[first + i] = number != number ? 0x7fc0 : (uint16_t)rounded;
    }
}

/* Copy a matrix, transposed, with zeros for missing rows. `columns` and `to_row` are multiples of 8. */
static void transpose(const float *from, Int rows, Int columns, float *to, Int to_row) {
    Int whole = rows / WIDTH * WIDTH;
    for (Int r = 0; r < whole; r += WIDTH)
        for (Int c = 0; c < columns; c += WIDTH)
            copy_transposed8(from + r * columns + c, columns, to + c * to_row + r, to_row);
    for (Int c = 0; whole < to_row && c < columns; c++) {
        for (Int r = whole; r < rows; r++) to[c * to_row + r] = from[r * columns + c];
        for (Int r = rows; r < to_row; r++) to[c * to_row + r] = 0;
    }
}

static void forward_task(const Attention *work, Int row, Int head, float *scratch) {
    Int first_query = work->query_ends[row], n = work->query_ends[row + 1] - first_query;
    Int first_key = work->key_ends[row], m = work->key_ends[row + 1] - first_key;
    Int d = rounded_up(work->d_head), padded = rounded_up(m);
    float *keys = scratch, *values = keys + padded * d, *columns = values + padded * d;
    float *queries = columns + padded * d, *weights = queries + BLOCK * d;
    float *fillers = weights + BLOCK * padded;
    float scale = 1 / sqrtf((float)work->d_head);
    for (Int j = 0; j < m; j++) {
        load(work, work->key, head, first_key + j, 1, keys + j * d);
        load(work, work->value, head, first_key + j, 1, values + j * d);
    }
    transpose(keys, m, d, columns, padded);
    for (Int start = 0; start < n; start += BLOCK) {
        Int block = n - start < BLOCK ? n - start : BLOCK;
        for (Int i = 0; i < block; i++)
            load(work, work->query, head, first_query + start + i, scale, queries + i * d);
        multiply(block, padded, d, queries, d, 1, columns, padded, weights, padded, 0);
        float totals[BLOCK];
        for (Int i = 0; i < block; i++) {
            float largest;
            Int seen = work->causal && start + i + 1 < m ? start + i + 1 : m;
            totals[i] = exponentials(weights + i * padded, seen, padded, 1, &largest);
            Int place = head * work->query_ends[work->n_rows] + first_query + start + i;
            if (work->log_sum) work->log_sum[place] = largest + logf(totals[i]);
        }
        multiply(block, d, m, weights, padded, 1, values, d, fillers, d, 0);
        for (Int i = 0; i < block; i++)
            store(work, work->filler, head, first_query + start + i, fillers + i * d,
                  m ? 1 / totals[i] : 0);
    }
}

/* The gradient of a block of scores, in place of that of the weights: w (g - sum of w g). */
INLINE void softmax_gradient(const float *weights, float *gradient, Int n) {
    __m256 total = _mm256_setzero_ps();
    for (Int j = 0; j < n; j += WIDTH)
        total = _mm256_fmadd_ps(_mm256_loadu_ps(weights + j), _mm256_loadu_ps(gradient + j), total);
    __m256 drift = _mm256_set1_ps(sum8(total));
    for (Int j = 0; j < n; j += WIDTH) {
        __m256 moved = _mm256_sub_ps(_mm256_loadu_ps(gradient + j), drift);
        _mm256_storeu_ps(gradient + j, _mm256_mul_ps(_mm256_loadu_ps(weights + j), moved));
    }
}

static void backward_task(const Attention *work, Int row, Int head, float *scratch) {
    Int first_query = work->query_ends[row], n = work->query_ends[row + 1] - first_query;
    Int first_key = work->key_ends[row], m = work->key_ends[row + 1] - first_key;
    Int d = rounded_up(work->d_head), padded = rounded_up(m), size = padded * d;
    float *keys = scratch, *values = keys + size, *columns = values + size;
    float *value_columns = columns + size, *d_keys = value_columns + size, *d_values = d_keys + size;
    float *queries = d_values + size, *gradients = queries + BLOCK * d;
    float *d_queries = gradients + BLOCK * d, *weights = d_queries + BLOCK * d;
    float *d_weights = weights + BLOCK * padded;
    float scale = 1 / sqrtf((float)work->d_head);
    for (Int j = 0; j < m; j++) {
        load(work, work->key, head, first_key + j, 1, keys + j * d);
        load(work, work->value, head, first_key + j, 1, values + j * d);
    }
    transpose(keys, m, d, columns, padded);
    transpose(values, m, d, value_columns, padded);
    memset(d_keys, 0, 2 * size * sizeof(float));
    for (Int start = 0; start < n; start += BLOCK) {
        Int block = n - start < BLOCK ? n - start : BLOCK;
        for (Int i = 0; i < block; i++) {
            load(work, work->query, head, first_query + start + i, scale, queries + i * d);
            load(work, work->gradient, head, first_query + start + i, 1, gradients + i * d);
        }
        multiply(block, padded, d, queries, d, 1, columns, padded, weights, padded, 0);
        multiply(block, padded, d, gradients, d, 1, value_columns, padded, d_weights, padded, 0);
        for (Int i = 0; i < block; i++) {
            float *own = weights + i * padded;
            Int seen = work->causal && start + i + 1 < m ? start + i + 1 : m;
            Int place = head * work->query_ends[work->n_rows] + first_query + start + i;
            __m256 shift = _mm256_set1_ps(work->log_sum[place]);
            for (Int j = 0; j < padded; j += WIDTH)
                _mm256_storeu_ps(own + j, exp8(_mm256_sub_ps(_mm256_loadu_ps(own + j), shift)));
            for (Int j = seen; j < padded; j++) own[j] = 0;
            softmax_gradient(own, d_weights + i * padded, padded);
        }
        multiply(m, d, block, weights, 1, padded, gradients, d, d_values, d, 1);
        multiply(m, d, block, d_weights, 1, padded, queries, d, d_keys, d, 1);
        multiply(block, d, m, d_weights, padded, 1, keys, d, d_queries, d, 0);
        for (Int i = 0; i < block; i++)
            store(work, work->d_query, head, first_query + start + i, d_queries + i * d, scale);
    }
    for (Int j = 0; j < m; j++) {
        store(work, work->d_key, head, first_key + j, d_keys + j * d, 1);
        store(work, work->d_value, head, first_key + j, d_values + j * d, 1);
    }
}

/* All heads of a row. */
static int run_row(void *argument, Int row) {
    const Attention *work = argument;
    if (multiplies_bfloat16(work)) {
        char *own = malloc(bfloat16_scratch(work->most_keys, work->d_head));
        if (!own) return 1;
        for (Int head = 0; head < work->n_heads; head++)
            (work->d_query.data ? backward_bfloat16 : forward_bfloat16)(work, row, head, own);
        free(own);
        return 0;
    }
    Int d = rounded_up(work->d_head), padded = rounded_up(work->most_keys);
    float *scratch = malloc((6 * padded * d + 3 * BLOCK * d + 2 * BLOCK * padded) * sizeof(float));
    if (!scratch) return 1;
    for (Int head = 0; head < work->n_heads; head++)
        (work->d_query.data ? backward_task : forward_task)(work, row, head, scratch);
    free(scratch);
    return 0;
}

EXPORT int attention(const Attention *given, Int n_threads) {
    Attention work = *given;
    double n_products = 0;
    work.most_keys = 0;
    for (Int row = 0; row < work.n_rows; row++) {
        Int n = work.query_ends[row + 1] - work.query_ends[row];
        Int m = work.key_ends[row + 1] - work.key_ends[row];
        if (m > work.most_keys) work.most_keys = m;
        n_products += 2.0 * n * m * work.d_head * work.n_heads;
    }
    return in_parallel(&work, run_row, work.n_rows, n_products < LEAST_WORK ? 1 : n_threads);
}
