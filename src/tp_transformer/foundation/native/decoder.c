/* One step of the decoder of a Transformer in float32: all layers, for the next token of each row.

   Weights are read as PyTorch stores them, (out, in). Keys and values of the source are read where
   the encoder's maps wrote them, and those of the target from the cache, so that nothing is copied
   when rows leave the batch. Rows are divided among threads. */

#include <pthread.h>
#include <stdlib.h>

#include "kernels.h"

#define AT_ONCE 48 /* rows whose states stay in the cache while weights are read */
#define MOST_THREADS 64
#define LEAST_ROWS 8 /* of a thread */

enum { PLAIN, RELU, ADDED };

typedef struct {
    const float *weight, *bias;
} Affine; /* also the gain and the bias of a normalisation */

typedef struct {
    Affine norms[4]; /* before self-attention, cross-attention, feed-forward layer; of the output */
    Affine self_in, self_out, cross_in, cross_out, expand, contract;
} Layer;

typedef struct {
    Affine role; /* of the embedding; its weight is NULL if there is none */
    const float *symbols, *positions;
} Embedding;

typedef struct {
    Int n_rows, n_questions, n_layers, n_heads, d_head, d_ff, n_vocab, position, room, binds;
    Int memory_head, memory_position; /* strides of the keys and values of the source */
    float epsilon;
    const Embedding *embedding;
    const Layer *layers;
    const float *const *memory; /* keys and values of the source, by layer */
    const Int *starts, *lengths; /* of each question in the memory */
    float *cache;                /* (row, room, layer, key or value, head, d_head) */
    const Int *previous;
    float *logits;
} Step;

/* Sums of four vectors. */
INLINE __m128 sums4(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

INLINE void finish(float *out, __m128 sums, const float *bias, int kind) {
    if (bias) sums = _mm_add_ps(sums, _mm_loadu_ps(bias));
    if (kind == RELU) sums = _mm_max_ps(_mm_setzero_ps(), sums); /* this order keeps NaN */
    if (kind == ADDED) sums = _mm_add_ps(sums, _mm_loadu_ps(out));
    _mm_storeu_ps(out, sums);
}

INLINE __m256 product(const float *a, const float *b, Int d) {
    __m256 sum = _mm256_setzero_ps();
    for (Int i = 0; i < d; i += WIDTH)
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), sum);
    return sum;
}

/* Four outputs of some rows. */
INLINE void columns4(int rows, Int depth, const float *in, const float *weight, const float *bias,
                     float *out, Int n_out, int kind) {
    __m256 sums[3][4];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < 4; j++) sums[i][j] = _mm256_setzero_ps();
    for (Int k = 0; k < depth; k += WIDTH) {
        __m256 left[3];
        for (int i = 0; i < rows; i++) left[i] = _mm256_loadu_ps(in + i * depth + k);
        for (int j = 0; j < 4; j++) {
            __m256 right = _mm256_loadu_ps(weight + j * depth + k);
            for (int i = 0; i < rows; i++) sums[i][j] = _mm256_fmadd_ps(left[i], right, sums[i][j]);
        }
    }
    for (int i = 0; i < rows; i++)
        finish(out + i * n_out, sums4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]), bias, kind);
}

/* out (row, n_out) = in (row, depth) times the transposed weight, plus bias. The depth is a multiple
   of 8; without a bias, n_out need not be a multiple of 4. */
static void affine(Int n_rows, Int depth, Int n_out, const float *in, Affine map, float *out,
                   int kind) {
    Int column = 0;
    for (; column + 4 <= n_out; column += 4) {
        const float *weight = map.weight + column * depth;
        const float *bias = map.bias ? map.bias + column : NULL;
        Int row = 0;
        for (; row + 3 <= n_rows; row += 3)
            columns4(3, depth, in + row * depth, weight, bias, out + row * n_out + column, n_out,
                     kind);
        in += row * depth, out += row * n_out;
        if (n_rows - row == 2) columns4(2, depth, in, weight, bias, out + column, n_out, kind);
        if (n_rows - row == 1) columns4(1, depth, in, weight, bias, out + column, n_out, kind);
        in -= row * depth, out -= row * n_out;
    }
    for (; column < n_out; column++)
        for (Int row = 0; row < n_rows; row++)
            out[row * n_out + column] =
                sum8(product(in + row * depth, map.weight + column * depth, depth));
}

static void normalise(Int n_rows, Int d_model, const float *in, Affine norm, float epsilon,
                      float *out) {
    for (Int row = 0; row < n_rows; row++, in += d_model, out += d_model) {
        __m256 total = _mm256_setzero_ps(), squares = _mm256_setzero_ps();
        for (Int i = 0; i < d_model; i += WIDTH)
            total = _mm256_add_ps(total, _mm256_loadu_ps(in + i));
        __m256 mean = _mm256_set1_ps(sum8(total) / (float)d_model);
        for (Int i = 0; i < d_model; i += WIDTH) {
            __m256 away = _mm256_sub_ps(_mm256_loadu_ps(in + i), mean);
            squares = _mm256_fmadd_ps(away, away, squares);
        }
        __m256 scale = _mm256_set1_ps(1 / sqrtf(sum8(squares) / (float)d_model + epsilon));
        for (Int i = 0; i < d_model; i += WIDTH) {
            __m256 unit = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(in + i), mean), scale);
            __m256 gain = _mm256_loadu_ps(norm.weight + i), bias = _mm256_loadu_ps(norm.bias + i);
            _mm256_storeu_ps(out + i, _mm256_fmadd_ps(unit, gain, bias));
        }
    }
}

/* The filler of one query (equations 2 and 3), times its role if there is one (equation 4). */
static void attend(Int d, Int n_keys, const float *query, const float *keys, const float *values,
                   Int stride, const float *role, float *scores, float *bound) {
    float scale = 1 / sqrtf((float)d);
    Int j = 0, padded = rounded_up(n_keys);
    for (; j + 4 <= n_keys; j += 4) {
        const float *key = keys + j * stride;
        __m128 sums = sums4(product(query, key, d), product(query, key + stride, d),
                            product(query, key + 2 * stride, d), product(query, key + 3 * stride, d));
        _mm_storeu_ps(scores + j, _mm_mul_ps(sums, _mm_set1_ps(scale)));
    }
    for (; j < n_keys; j++) scores[j] = sum8(product(query, keys + j * stride, d)) * scale;
    for (; j < padded; j++) scores[j] = -INFINITY;
    __m256 most = _mm256_set1_ps(-INFINITY), total = _mm256_setzero_ps();
    for (j = 0; j < padded; j += WIDTH) most = _mm256_max_ps(most, _mm256_loadu_ps(scores + j));
    __m256 shift = _mm256_set1_ps(max8(most));
    for (j = 0; j < padded; j += WIDTH)
        _mm256_storeu_ps(scores + j, exp8(_mm256_sub_ps(_mm256_loadu_ps(scores + j), shift)));
    for (j = n_keys; j < padded; j++) scores[j] = 0;
    for (j = 0; j < padded; j += WIDTH) total = _mm256_add_ps(total, _mm256_loadu_ps(scores + j));
    __m256 inverse = _mm256_set1_ps(1 / sum8(total));
    for (Int i = 0; i < d; i += WIDTH) {
        __m256 even = _mm256_setzero_ps(), odd = even;
        for (j = 0; j + 2 <= n_keys; j += 2) {
            const float *value = values + j * stride + i;
            even = _mm256_fmadd_ps(_mm256_broadcast_ss(scores + j), _mm256_loadu_ps(value), even);
            odd = _mm256_fmadd_ps(_mm256_broadcast_ss(scores + j + 1),
                                  _mm256_loadu_ps(value + stride), odd);
        }
        if (j < n_keys)
            even = _mm256_fmadd_ps(_mm256_broadcast_ss(scores + j),
                                   _mm256_loadu_ps(values + j * stride + i), even);
        __m256 filler = _mm256_mul_ps(_mm256_add_ps(even, odd), inverse);
        if (role) filler = _mm256_mul_ps(filler, _mm256_loadu_ps(role + i));
        _mm256_storeu_ps(bound + i, filler);
    }
}

/* Self-attention of a row: its key and value are added to the cache. `projected` is query, key,
   value and role. */
static void attend_self(const Step *step, Int row, Int layer, const float *projected, float *scores,
                        float *bound) {
    Int d = step->d_head, d_model = d * step->n_heads, stride = step->n_layers * 2 * d_model;
    float *keys = step->cache + row * step->room * stride + layer * 2 * d_model;
    memcpy(keys + step->position * stride, projected + d_model, 2 * d_model * sizeof(float));
    for (Int head = 0; head < step->n_heads; head++) {
        const float *query = projected + head * d;
        attend(d, step->position + 1, query, keys + head * d, keys + d_model + head * d, stride,
               step->binds ? query + 3 * d_model : NULL, scores, bound + head * d);
    }
}

/* Cross-attention of a row; `projected` is query and role. */
static void attend_across(const Step *step, Int row, Int layer, const float *projected,
                          float *scores, float *bound) {
    Int d = step->d_head, d_model = d * step->n_heads;
    Int question = row / (step->n_rows / step->n_questions), stride = step->memory_position;
    Int first = step->starts[question] * stride;
    const float *keys = step->memory[2 * layer] + first;
    const float *values = step->memory[2 * layer + 1] + first;
    for (Int head = 0; head < step->n_heads; head++) {
        const float *query = projected + head * d;
        Int offset = head * step->memory_head;
        attend(d, step->lengths[question], query, keys + offset, values + offset, stride,
               step->binds ? query + d_model : NULL, scores, bound + head * d);
    }
}

static void embed(const Step *step, Int first, Int n, float *state, float *role) {
    Int d_model = step->d_head * step->n_heads;
    const Embedding *embedding = step->embedding;
    const float *position = embedding->positions + step->position * d_model;
    float scale = sqrtf((float)d_model);
    for (Int row = 0; row < n; row++) {
        const float *symbol = embedding->symbols + step->previous[first + row] * d_model;
        for (Int i = 0; i < d_model; i++)
            state[row * d_model + i] = symbol[i] * scale + position[i];
    }
    if (!embedding->role.weight) return;
    affine(n, d_model, d_model, state, embedding->role, role, PLAIN);
    for (Int i = 0; i < n * d_model; i++) state[i] += state[i] * role[i];
}

/* A step of `n` rows from `first` on; returns whether there was too little memory. */
static int run_rows(const Step *step, Int first, Int n) {
    Int d_model = step->d_head * step->n_heads, d_ff = step->d_ff, longest = step->room;
    Int n_self = step->binds ? 4 : 3, n_cross = step->binds ? 2 : 1;
    Int widest = n_self * d_model > d_ff ? n_self * d_model : d_ff;
    for (Int question = 0; question < step->n_questions; question++)
        if (step->lengths[question] > longest) longest = step->lengths[question];
    float *state = malloc((n * (2 * d_model + widest) + rounded_up(longest)) * sizeof(float));
    if (!state) return 1;
    float *other = state + n * d_model, *wide = other + n * d_model, *scores = wide + n * widest;
    embed(step, first, n, state, other);
    for (Int number = 0; number < step->n_layers; number++) {
        const Layer *layer = step->layers + number;
        normalise(n, d_model, state, layer->norms[0], step->epsilon, other);
        affine(n, d_model, n_self * d_model, other, layer->self_in, wide, PLAIN);
        for (Int row = 0; row < n; row++)
            attend_self(step, first + row, number, wide + row * n_self * d_model, scores,
                        other + row * d_model);
        affine(n, d_model, d_model, other, layer->self_out, state, ADDED);
        normalise(n, d_model, state, layer->norms[1], step->epsilon, other);
        affine(n, d_model, n_cross * d_model, other, layer->cross_in, wide, PLAIN);
        for (Int row = 0; row < n; row++)
            attend_across(step, first + row, number, wide + row * n_cross * d_model, scores,
                          other + row * d_model);
        affine(n, d_model, d_model, other, layer->cross_out, state, ADDED);
        normalise(n, d_model, state, layer->norms[2], step->epsilon, other);
        affine(n, d_model, d_ff, other, layer->expand, wide, RELU);
        affine(n, d_ff, d_model, wide, layer->contract, state, ADDED);
        normalise(n, d_model, state, layer->norms[3], step->epsilon, state);
    }
    Affine output = {step->embedding->symbols, NULL};
    affine(n, d_model, step->n_vocab, state, output, step->logits + first * step->n_vocab, PLAIN);
    free(state);
    return 0;
}

typedef struct {
    const Step *step;
    Int first, end;
    int failed;
} Share;

static void *run_share(void *argument) {
    Share *share = argument;
    for (Int row = share->first; row < share->end && !share->failed; row += AT_ONCE) {
        Int n = share->end - row < AT_ONCE ? share->end - row : AT_ONCE;
        share->failed = run_rows(share->step, row, n);
    }
    return NULL;
}

/* Sizes: see Step, up to the strides of the memory, then the number of threads. `weights` has the
   embedding (role map, symbols, positions), then the layers, in the order of the structures.
   Returns 0, 1 if there was too little memory, or 2 if a token is not in the vocabulary. */
EXPORT int decoder_step(const Int *sizes, const float *epsilon, const float *const *weights,
                        const float *const *memory, const Int *starts, const Int *lengths,
                        float *cache, const Int *previous, float *logits) {
    Step step = {.n_rows = sizes[0], .n_questions = sizes[1], .n_layers = sizes[2],
                 .n_heads = sizes[3], .d_head = sizes[4], .d_ff = sizes[5], .n_vocab = sizes[6],
                 .position = sizes[7], .room = sizes[8], .binds = sizes[9],
                 .memory_head = sizes[10], .memory_position = sizes[11], .epsilon = *epsilon,
                 .embedding = (const Embedding *)weights,
                 .layers = (const Layer *)((const Embedding *)weights + 1), .memory = memory,
                 .starts = starts, .lengths = lengths, .cache = cache, .previous = previous,
                 .logits = logits};
    for (Int row = 0; row < step.n_rows; row++)
        if (previous[row] < 0 || previous[row] >= step.n_vocab) return 2;
    Int n_shares = step.n_rows / LEAST_ROWS < sizes[12] ? step.n_rows / LEAST_ROWS : sizes[12];
    if (n_shares > MOST_THREADS) n_shares = MOST_THREADS;
    if (n_shares < 1) n_shares = 1;
    Share shares[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    int started[MOST_THREADS] = {0}, failed = 0;
    for (Int i = 0; i < n_shares; i++) {
        shares[i] = (Share){&step, i * step.n_rows / n_shares, (i + 1) * step.n_rows / n_shares, 0};
        if (i) started[i] = !pthread_create(&threads[i], NULL, run_share, &shares[i]);
    }
    for (Int i = 0; i < n_shares; i++)
        if (!started[i]) run_share(&shares[i]);
    for (Int i = 0; i < n_shares; i++) {
        if (started[i]) pthread_join(threads[i], NULL);
        failed |= shares[i].failed;
    }
    return failed;
}
