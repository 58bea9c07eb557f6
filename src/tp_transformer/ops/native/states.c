/* Passes over the states between the matrix products of a training step.

   States are (position, d): in float32 on the residual stream, in float32 or bfloat16 (`kind`)
   before and after products. d is a multiple of 8, but for `relu_backward`. Everything is computed
   in float32. The positions are divided among threads; sums over positions are those of the
   threads, added in order. */

#include <stdlib.h>
#include <string.h>

#include "parallel.h"
#include "precision.h"

#define EPSILON 1e-5f
#define LEAST_NUMBERS 200000 /* numbers of a thread that are worth its start */

typedef struct {
    Int n, d, kind, out_kind, n_parts;
    const float *state, *added, *weight, *bias, *other_bias; /* `added` may be NULL */
    const char *other, *factor;                 /* (position, d) in `kind` */
    Int strides[3];                             /* of positions */
    float *sum, *stats;                         /* results in float32 */
    char *low;                                  /* a result in `kind`, or NULL */
    float *sums; /* (part, sum, d): sums over the positions of each part */
} Pass;

INLINE Int first_of(const Pass *pass, Int part) { return pass->n * part / pass->n_parts; }

INLINE void accumulate(float *sum, __m256 numbers) {
    _mm256_storeu_ps(sum, _mm256_add_ps(_mm256_loadu_ps(sum), numbers));
}

/* sum = state + other + its bias, if there is another; low = normalised sum; stats: mean, 1 /
   deviation. */
INLINE void normalise_row(const Pass *pass, Int row, Int kind, Int out_kind) {
    Int d = pass->d, first = row * d;
    int adds = pass->other != NULL;
    const float *state = pass->state + first;
    __m256 total = _mm256_setzero_ps(), squares = _mm256_setzero_ps();
    for (Int i = 0; i < d; i += WIDTH) {
        __m256 numbers = _mm256_loadu_ps(state + i);
        if (adds) {
            __m256 added = _mm256_loadu_ps(pass->other_bias + i);
            added = _mm256_add_ps(added, read8(pass->other, first + i, kind));
            numbers = _mm256_add_ps(numbers, added);
            _mm256_storeu_ps(pass->sum + first + i, numbers);
        }
        total = _mm256_add_ps(total, numbers);
    }
    if (adds) state = pass->sum + first;
    __m256 mean = _mm256_set1_ps(sum8(total) / (float)d);
    for (Int i = 0; i < d; i += WIDTH) {
        __m256 away = _mm256_sub_ps(_mm256_loadu_ps(state + i), mean);
        squares = _mm256_fmadd_ps(away, away, squares);
    }
    __m256 scale = _mm256_set1_ps(1 / sqrtf(sum8(squares) / (float)d + EPSILON));
    pass->stats[2 * row] = _mm256_cvtss_f32(mean);
    pass->stats[2 * row + 1] = _mm256_cvtss_f32(scale);
    for (Int i = 0; i < d; i += WIDTH) {
        __m256 unit = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(state + i), mean), scale);
        __m256 gain = _mm256_loadu_ps(pass->weight + i), bias = _mm256_loadu_ps(pass->bias + i);
        write8(pass->low, first + i, _mm256_fmadd_ps(unit, gain, bias), out_kind);
    }
}

static int normalise_part(void *argument, Int part) {
    const Pass *pass = argument;
    for (Int row = first_of(pass, part); row < first_of(pass, part + 1); row++)
        normalise_row(pass, row, pass->kind, pass->out_kind);
    return 0;
}

/* sum = the gradient of the input of a normalisation, from `other`, that of its output, plus
   `added`; low = the same in `kind`. Sums: gradients of weight and bias, and of `sum` itself. */
INLINE void normalise_row_back(const Pass *pass, Int row, float *sums, Int kind) {
    Int d = pass->d, first = row * d;
    const float *state = pass->state + first;
    __m256 mean = _mm256_set1_ps(pass->stats[2 * row]);
    __m256 scale = _mm256_set1_ps(pass->stats[2 * row + 1]);
    __m256 total = _mm256_setzero_ps(), along = _mm256_setzero_ps();
    for (Int i = 0; i < d; i += WIDTH) {
        __m256 unit = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(state + i), mean), scale);
        __m256 gradient = read8(pass->other, first + i, kind);
        accumulate(sums + i, _mm256_mul_ps(gradient, unit));
        accumulate(sums + d + i, gradient);
        gradient = _mm256_mul_ps(gradient, _mm256_loadu_ps(pass->weight + i));
        total = _mm256_add_ps(total, gradient);
        along = _mm256_fmadd_ps(gradient, unit, along);
    }
    total = _mm256_set1_ps(sum8(total) / (float)d), along = _mm256_set1_ps(sum8(along) / (float)d);
    for (Int i = 0; i < d; i += WIDTH) {
        __m256 unit = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(state + i), mean), scale);
        __m256 gradient = read8(pass->other, first + i, kind);
        gradient = _mm256_fmsub_ps(gradient, _mm256_loadu_ps(pass->weight + i), total);
        gradient = _mm256_mul_ps(_mm256_fnmadd_ps(unit, along, gradient), scale);
        if (pass->added)
            gradient = _mm256_add_ps(gradient, _mm256_loadu_ps(pass->added + first + i));
        accumulate(sums + 2 * d + i, gradient);
        _mm256_storeu_ps(pass->sum + first + i, gradient);
        if (pass->low) write8(pass->low, first + i, gradient, BFLOAT16);
    }
}

static int normalise_part_back(void *argument, Int part) {
    const Pass *pass = argument;
    float *sums = pass->sums + part * 3 * pass->d;
    for (Int row = first_of(pass, part); row < first_of(pass, part + 1); row++)
        normalise_row_back(pass, row, sums, pass->kind);
    return 0;
}

/* low = 0 where `other`, the output of a ReLU, is 0 (if it is not NULL); sums: of low. */
INLINE void sum_row(const Pass *pass, Int row, float *sums, Int kind) {
    Int d = pass->d, first = row * d, i = 0, size = kind == FLOAT32 ? 4 : 2;
    for (; i + WIDTH <= d; i += WIDTH) {
        __m256 gradient = read8(pass->low, first + i, kind);
        if (pass->other) {
            __m256 output = read8(pass->other, first + i, kind);
            __m256 is_off = _mm256_cmp_ps(output, _mm256_setzero_ps(), _CMP_LE_OQ);
            gradient = _mm256_andnot_ps(is_off, gradient);
            write8(pass->low, first + i, gradient, kind);
        }
        accumulate(sums + i, gradient);
    }
    for (; i < d; i++) { /* d_ff may be any number */
        if (pass->other && read1(pass->other, first + i, kind) <= 0)
            memset(pass->low + (first + i) * size, 0, size);
        sums[i] += read1(pass->low, first + i, kind);
    }
}

static int sum_part(void *argument, Int part) {
    const Pass *pass = argument;
    float *sums = pass->sums + part * pass->d;
    for (Int row = first_of(pass, part); row < first_of(pass, part + 1); row++)
        sum_row(pass, row, sums, pass->kind);
    return 0;
}

/* low = other * factor, elementwise. */
static int product_part(void *argument, Int part) {
    const Pass *pass = argument;
    const Int *strides = pass->strides, kind = pass->kind;
    for (Int row = first_of(pass, part); row < first_of(pass, part + 1); row++)
        for (Int i = 0; i < pass->d; i += WIDTH) {
            __m256 left = read8(pass->other, row * strides[0] + i, kind);
            __m256 right = read8(pass->factor, row * strides[1] + i, kind);
            write8(pass->low, row * strides[2] + i, _mm256_mul_ps(left, right), kind);
        }
    return 0;
}

/* Run a pass in parts; `sums` gets the total of `n_sums` rows of sums. */
static int run(Pass *pass, Task task, Int n_threads, Int n_sums, float *sums) {
    Int most = 1 + pass->n * pass->d / LEAST_NUMBERS, size = n_sums * pass->d;
    pass->n_parts = n_threads < most ? n_threads : most;
    pass->sums = size ? calloc(pass->n_parts * size, sizeof(float)) : NULL;
    if (size && !pass->sums) return 1;
    in_parallel(pass, task, pass->n_parts, n_threads);
    for (Int part = 0; part < pass->n_parts; part++)
        for (Int i = 0; i < size; i++) sums[i] = (part ? sums[i] : 0) + pass->sums[part * size + i];
    free(pass->sums);
    return 0;
}

/* `added` has this kind, and may be NULL; there is no `sum` then. */
EXPORT int normalise_forward(Int n, Int d, Int kind, Int out_kind, Int n_threads,
                             const float *state, const char *added, const float *added_bias,
                             const float *weight, const float *bias, float *sum, char *out,
                             float *stats) {
    Pass pass = {.n = n, .d = d, .kind = kind, .out_kind = out_kind, .state = state,
                 .other = added, .other_bias = added_bias, .weight = weight, .bias = bias,
                 .sum = sum, .low = out, .stats = stats};
    return run(&pass, normalise_part, n_threads, 0, NULL);
}

/* The gradient has this kind. `low` is in bfloat16. `added` and `low` may be NULL. */
EXPORT int normalise_backward(Int n, Int d, Int kind, Int n_threads, const float *state,
                              float *stats, const float *weight, const char *gradient,
                              const float *added, float *d_state, char *low, float *sums) {
    Pass pass = {.n = n, .d = d, .kind = kind, .state = state, .stats = stats, .weight = weight,
                 .other = gradient, .added = added, .sum = d_state, .low = low};
    return run(&pass, normalise_part_back, n_threads, 3, sums);
}

/* The gradient is replaced. */
EXPORT int relu_backward(Int n, Int d, Int kind, Int n_threads, const char *output, char *gradient,
                         float *sums) {
    Pass pass = {.n = n, .d = d, .kind = kind, .other = output, .low = gradient};
    return run(&pass, sum_part, n_threads, 1, sums);
}

/* Of states whose positions are `left_row`, `right_row` and `out_row` apart. */
EXPORT int elementwise_product(Int n, Int d, Int kind, Int n_threads, Int left_row, Int right_row,
                               Int out_row, const char *left, const char *right, char *out) {
    Pass pass = {.n = n, .d = d, .kind = kind, .strides = {left_row, right_row, out_row},
                 .other = left, .factor = right, .low = out};
    return run(&pass, product_part, n_threads, 0, NULL);
}
