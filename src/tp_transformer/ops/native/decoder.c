/* Steps of the decoder of a Transformer in float32, and greedy search, which repeats them.

   Keys and values, of the source in the memory and of the target in the cache, are read once per
   step and layer, which is most of the time of a step of many rows. They are therefore contiguous
   for each layer and row, so that the processor fetches them ahead. Nothing is copied when rows
   leave the batch. Rows are divided among threads. Without keys and values of the source, steps use
   their maps (absorbed.h). */

#include "absorbed.h"
#include "layers.h"
#include "parallel.h"

/* Fetch a vector of keys or values that will be read soon. */
INLINE void fetch(const float *vector, Int d_model) {
    for (Int i = 0; i < d_model; i += 2 * WIDTH) _mm_prefetch((const char *)(vector + i), _MM_HINT_T1);
}

/* The fillers of one row for all heads (equations 2 and 3), times the roles if there are any (equation
   4). Keys and values, whose heads are contiguous, are read once and in their order. */
static void attend(const Step *step, Int n_keys, const float *query, const float *keys,
                   const float *values, Int stride, const float *role, float *scores,
                   float *bound) {
    Int d = step->d_head, n_heads = step->n_heads, d_model = d * n_heads, j, head;
    Int padded = rounded_up(n_heads); /* scores are (key, head) */
    for (j = 0; j < n_keys; j++) {
        const float *key = keys + j * stride;
        float *own = scores + j * padded;
        fetch(values + j * stride, d_model);
        for (head = 0; head + 4 <= n_heads; head += 4) {
            Int at = head * d;
            _mm_storeu_ps(own + head,
                          sums4(product(query + at, key + at, d),
                                product(query + at + d, key + at + d, d),
                                product(query + at + 2 * d, key + at + 2 * d, d),
                                product(query + at + 3 * d, key + at + 3 * d, d)));
        }
        for (; head < n_heads; head++)
            own[head] = sum8(product(query + head * d, key + head * d, d));
        for (; head < padded; head++) own[head] = 0;
    }
    __m256 scale = _mm256_set1_ps(1 / sqrtf((float)d));
    for (head = 0; head < padded; head += WIDTH) {
        float *own = scores + head;
        __m256 most = _mm256_set1_ps(-INFINITY), total = _mm256_setzero_ps();
        for (j = 0; j < n_keys; j++) most = _mm256_max_ps(most, _mm256_loadu_ps(own + j * padded));
        for (j = 0; j < n_keys; j++) {
            __m256 below = _mm256_sub_ps(_mm256_loadu_ps(own + j * padded), most);
            __m256 weight = exp8(_mm256_mul_ps(below, scale));
            total = _mm256_add_ps(total, weight);
            _mm256_storeu_ps(own + j * padded, weight);
        }
        __m256 inverse = _mm256_div_ps(_mm256_set1_ps(1), total);
        for (j = 0; j < n_keys; j++)
            _mm256_storeu_ps(own + j * padded,
                             _mm256_mul_ps(_mm256_loadu_ps(own + j * padded), inverse));
    }
    memset(bound, 0, d_model * sizeof(float));
    for (j = 0; j < n_keys; j += 4) { /* four keys at a time, or the rest */
        Int n = n_keys - j < 4 ? n_keys - j : 4;
        for (Int k = j; k < j + n; k++) fetch(keys + (n_keys + k) * stride, d_model); /* next row */
        for (head = 0; head < n_heads; head++)
            for (Int i = head * d; i < (head + 1) * d; i += WIDTH) {
                __m256 sum = _mm256_loadu_ps(bound + i);
                for (Int k = j; k < j + n; k++)
                    sum = _mm256_fmadd_ps(_mm256_broadcast_ss(scores + k * padded + head),
                                          _mm256_loadu_ps(values + k * stride + i), sum);
                _mm256_storeu_ps(bound + i, sum);
            }
    }
    if (role)
        for (Int i = 0; i < d_model; i++) bound[i] *= role[i];
}

static Int cache_row_of(const Step *step, Int row) {
    return step->cache_row ? step->cache_row[row] : row;
}

/* Self-attention of a row: its key and value are added to the cache. `projected` is query, key,
   value and role. */
static void attend_self(const Step *step, Int row, Int layer, const float *projected, float *scores,
                        float *bound) {
    Int d_model = step->d_head * step->n_heads, size = step->room * d_model;
    float *keys = step->cache + (2 * layer * step->cache_rows + cache_row_of(step, row)) * size;
    float *values = keys + step->cache_rows * size;
    memcpy(keys + step->position * d_model, projected + d_model, d_model * sizeof(float));
    memcpy(values + step->position * d_model, projected + 2 * d_model, d_model * sizeof(float));
    attend(step, step->position + 1, projected, keys, values, d_model,
           step->binds ? projected + 3 * d_model : NULL, scores, bound);
}

static Int question_of(const Step *step, Int row) {
    return cache_row_of(step, row) / (step->cache_rows / step->n_questions);
}

/* Cross-attention of a row; `projected` is query and role. */
static void attend_across(const Step *step, Int row, Int layer, const float *projected,
                          float *scores, float *bound) {
    Int d_model = step->d_head * step->n_heads, question = question_of(step, row);
    const float *keys = step->memory + (2 * layer * step->n_source + step->starts[question]) * d_model;
    attend(step, step->lengths[question], projected, keys, keys + step->n_source * d_model, d_model,
           step->binds ? projected + d_model : NULL, scores, bound);
}

/* The same for `n` rows from `first` on by the maps of keys and values; returns whether there was too
   little memory. */
static int attend_to_states(const Step *step, Int first, Int n, Int layer, const float *projected,
                            float *bound) {
    Int d_model = step->d_head * step->n_heads, width = (step->binds ? 2 : 1) * d_model;
    const Affine *map = step->maps + layer;
    Source *sources = malloc(n * sizeof(Source));
    if (!sources) return 1;
    for (Int row = 0; row < n; row++) {
        Int question = question_of(step, first + row);
        sources[row] = (Source){step->source + step->starts[question] * d_model,
                                step->lengths[question]};
    }
    int failed = absorbed_attention(n, step->n_heads, step->d_head, projected, width, sources,
                                    map->panels, map->bias, bound);
    free(sources);
    for (Int row = 0; step->binds && row < n; row++)
        for (Int i = 0; i < d_model; i++)
            bound[row * d_model + i] *= projected[row * width + d_model + i];
    return failed;
}

typedef struct {
    Int id, position;
} Token;

#define TOKEN_WORDS (Int)(sizeof(Token) / sizeof(uint64_t))

static void embed(const Embedding *embedding, Int d_model, Int n, const Token *tokens, float *state,
                  float *role) {
    float scale = sqrtf((float)d_model);
    for (Int row = 0; row < n; row++) {
        const float *symbol = embedding->symbols + tokens[row].id * d_model;
        const float *place = embedding->positions + tokens[row].position * d_model;
        for (Int i = 0; i < d_model; i++) state[row * d_model + i] = symbol[i] * scale + place[i];
    }
    if (!embedding->role.weight && !embedding->role.int8) return;
    affine(n, d_model, d_model, state, embedding->role, role, PLAIN);
    for (Int i = 0; i < n * d_model; i++) state[i] += state[i] * role[i];
}

typedef struct {
    Int n_positions, n_blocks, d_model;
    const Embedding *embedding;
    const Token *tokens;
    float *state;
} Embed;

static int embed_block(void *argument, Int block) {
    const Embed *work = argument;
    Int d = work->d_model, first = first_of_block(work->n_positions, work->n_blocks, block);
    Int n = size_of_block(work->n_positions, work->n_blocks, block);
    float *role = malloc(n * d * sizeof(float));
    if (!role) return 1;
    embed(work->embedding, d, n, work->tokens + first, work->state + first * d, role);
    free(role);
    return 0;
}

/* The embedded tokens of packed rows. Returns as `run_step`. */
EXPORT int embed_forward(Int n_rows, Int d_model, Int n_vocab, Int n_threads,
                         const Embedding *embedding, const Int *ends, const Int *ids,
                         float *state) {
    Int n = ends[n_rows];
    for (Int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab) return 2;
    Token *tokens = malloc((n + 1) * sizeof(Token));
    if (!tokens) return 1;
    for (Int row = 0; row < n_rows; row++)
        for (Int i = ends[row]; i < ends[row + 1]; i++) tokens[i] = (Token){ids[i], i - ends[row]};
    Distinct found;
    int failed = find_distinct(n, TOKEN_WORDS, tokens, &found);
    if (!failed) {
        gather_rows(&found, TOKEN_WORDS, tokens);
        Embed work = {.n_positions = n_computed(&found), .d_model = d_model,
                      .embedding = embedding, .tokens = tokens, .state = state};
        work.n_blocks = n_blocks_of(work.n_positions, n_threads);
        failed = in_parallel(&work, embed_block, work.n_blocks, n_threads);
        spread_rows(&found, d_model / 2, state);
        free_distinct(&found);
    }
    free(tokens);
    return failed;
}

/* Embed the last tokens of `n` rows from `first` on, and project them to queries, keys, values and
   roles (`wide`) of the first layer, once for equal tokens. `other` has the size of the states. Returns
   whether there was too little memory. */
static int begin_rows(const Step *step, Int first, Int n, float *state, float *other, float *wide) {
    Int d_model = step->d_head * step->n_heads, width = (step->binds ? 4 : 3) * d_model;
    Token *tokens = malloc(n * sizeof(Token));
    Distinct found;
    if (!tokens) return 1;
    for (Int row = 0; row < n; row++)
        tokens[row] = (Token){step->previous[first + row], step->position};
    int failed = find_distinct(n, TOKEN_WORDS, tokens, &found);
    if (!failed) {
        Int computed = n_computed(&found);
        gather_rows(&found, TOKEN_WORDS, tokens);
        embed(step->embedding, d_model, computed, tokens, state, other);
        normalise(computed, d_model, state, step->layers->norms[0], other);
        affine(computed, d_model, width, other, step->layers->self_in, wide, PLAIN);
        spread_rows(&found, d_model / 2, state);
        spread_rows(&found, width / 2, wide);
        free_distinct(&found);
    }
    free(tokens);
    return failed;
}

/* A step of `n` rows from `first` on; returns whether there was too little memory. */
static int run_rows(const Step *step, Int first, Int n) {
    Int d_model = step->d_head * step->n_heads, d_ff = step->d_ff, longest = step->room;
    Int n_self = step->binds ? 4 : 3, n_cross = step->binds ? 2 : 1;
    Int widest = n_self * d_model > d_ff ? n_self * d_model : d_ff;
    for (Int question = 0; question < step->n_questions; question++)
        if (step->lengths[question] > longest) longest = step->lengths[question];
    float *state = malloc((n * (2 * d_model + widest) + longest * rounded_up(step->n_heads)) *
                          sizeof(float));
    if (!state) return 1;
    float *other = state + n * d_model, *wide = other + n * d_model, *scores = wide + n * widest;
    int failed = begin_rows(step, first, n, state, other, wide);
    for (Int number = 0; number < step->n_layers && !failed; number++) {
        const Layer *layer = step->layers + number;
        if (number) {
            normalise(n, d_model, state, layer->norms[0], other);
            affine(n, d_model, n_self * d_model, other, layer->self_in, wide, PLAIN);
        }
        for (Int row = 0; row < n; row++)
            attend_self(step, first + row, number, wide + row * n_self * d_model, scores,
                        other + row * d_model);
        affine(n, d_model, d_model, other, layer->self_out, state, ADDED);
        normalise(n, d_model, state, layer->norms[1], other);
        affine(n, d_model, n_cross * d_model, other, layer->cross_in, wide, PLAIN);
        if (!step->memory)
            failed = attend_to_states(step, first, n, number, wide, other);
        else
            for (Int row = 0; row < n; row++)
                attend_across(step, first + row, number, wide + row * n_cross * d_model, scores,
                              other + row * d_model);
        affine(n, d_model, d_model, other, layer->cross_out, state, ADDED);
        normalise(n, d_model, state, layer->norms[2], other);
        feed_forward(n, d_model, d_ff, other, layer, wide, state);
        normalise(n, d_model, state, layer->norms[3], state);
    }
    Affine output = {step->embedding->symbols, NULL, NULL, NULL};
    if (!failed)
        affine(n, d_model, step->n_vocab, state, output, step->logits + first * step->n_vocab, PLAIN);
    free(state);
    return failed;
}

static int run_block(void *work, Int block) {
    const Step *step = work;
    return run_rows(step, first_of_block(step->n_rows, step->n_blocks, block),
                    size_of_block(step->n_rows, step->n_blocks, block));
}

/* Run a step; returns 0, 1 if there was too little memory, 2 if a token is not in the vocabulary. */
static int run_step(Step *step) {
    for (Int row = 0; row < step->n_rows; row++)
        if (step->previous[row] < 0 || step->previous[row] >= step->n_vocab) return 2;
    step->n_blocks = n_blocks_of(step->n_rows, step->n_threads);
    return in_parallel(step, run_block, step->n_blocks, step->n_threads);
}

/* A step of all rows, whose logits are (row, n_vocab). Returns as `run_step`. */
EXPORT int decoder_step(Step *step) { return run_step(step); }

/* The index of the largest number, the first one of equal ones; as in PyTorch, NaN is the largest. */
static Int largest(const float *numbers, Int n) {
    Int best = 0;
    for (Int i = 0; i < n && numbers[best] == numbers[best]; i++)
        if (!(numbers[i] <= numbers[best])) best = i;
    return best;
}

/* Greedy search up to the room of the cache. The rows of the step are those that have not ended, and
   `previous` their last tokens; `running` are their rows in `tokens`, each of `length` tokens. Updates
   all of them, and the position. Returns as `run_step`. */
EXPORT int decoder_greedy(Step *step, Int eos, Int length, Int *previous, Int *running,
                          Int *tokens) {
    step->cache_row = running;
    for (; step->position < step->room && step->n_rows; step->position++) {
        int problem = run_step(step);
        if (problem) return problem;
        Int n_running = 0;
        for (Int row = 0; row < step->n_rows; row++) {
            const float *logits = step->logits + row * step->n_vocab;
            Int own = running[row], best = largest(logits, step->n_vocab);
            tokens[own * length + step->position] = best;
            if (best == eos) continue;
            running[n_running] = own, previous[n_running] = best;
            ++n_running;
        }
        step->n_rows = n_running;
    }
    return 0;
}
