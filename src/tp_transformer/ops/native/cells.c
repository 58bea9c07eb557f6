/* All cells of an encoder, or of a decoder with known targets, in float32, for packed rows.

   Between two attentions, a block of positions passes all maps and normalisations while its states
   are in the cache. If a thread has several blocks, the weights of a layer are packed into panels once
   for all of them, and the panels of the next layer take their place, unless the layers have panels. */

#include "attention.h"
#include "layers.h"
#include "parallel.h"

typedef struct {
    Int n_positions, n_blocks, d_model, d_ff, binds;
    const Layer *layer;
    int sublayer;                   /* 0: self-attention, 1: cross-attention, 2: feed-forward */
    float *state, *wide, *filler;   /* (position, …); `wide` has the projections of an attention */
} Work;

static Int first_of(const Work *work, Int block) {
    return first_of_block(work->n_positions, work->n_blocks, block);
}

static Int size_of(const Work *work, Int block) {
    return size_of_block(work->n_positions, work->n_blocks, block);
}

/* Normalise, and project to queries, keys, values and roles. */
static int before_attention(void *argument, Int block) {
    const Work *work = argument;
    const Layer *layer = work->layer;
    Int d = work->d_model, n = size_of(work, block), first = first_of(work, block);
    Int width = (work->sublayer ? 1 : 3) + (work->binds ? 1 : 0);
    float *normal = malloc(n * d * sizeof(float));
    if (!normal) return 1;
    normalise(n, d, work->state + first * d, layer->norms[work->sublayer], normal);
    affine(n, d, width * d, normal, work->sublayer ? layer->cross_in : layer->self_in,
           work->wide + first * width * d, PLAIN);
    free(normal);
    return 0;
}

/* `before_attention` of the first layer, once for equal states. */
static int before_first_attention(Work *work, Int width, Int n_threads) {
    Distinct found;
    if (find_distinct(work->n_positions, work->d_model / 2, work->state, &found)) return 1;
    Work own = *work;
    own.n_positions = n_computed(&found);
    own.n_blocks = n_blocks_of(own.n_positions, n_threads);
    gather_rows(&found, work->d_model / 2, work->state);
    int failed = in_parallel(&own, before_attention, own.n_blocks, n_threads);
    spread_rows(&found, work->d_model / 2, work->state);
    spread_rows(&found, width / 2, work->wide);
    free_distinct(&found);
    return failed;
}

/* Bind fillers to roles, and add their map to the states. */
static int after_attention(void *argument, Int block) {
    const Work *work = argument;
    Int d = work->d_model, n = size_of(work, block), first = first_of(work, block);
    Int width = (work->sublayer ? 1 : 3) + (work->binds ? 1 : 0);
    float *filler = work->filler + first * d;
    for (Int row = 0; work->binds && row < n; row++) {
        const float *role = work->wide + ((first + row) * width + width - 1) * d;
        for (Int i = 0; i < d; i++) filler[row * d + i] *= role[i];
    }
    affine(n, d, d, filler, work->sublayer ? work->layer->cross_out : work->layer->self_out,
           work->state + first * d, ADDED);
    return 0;
}

/* The feed-forward layer, and the last normalisation of a cell. */
static int after_attentions(void *argument, Int block) {
    const Work *work = argument;
    const Layer *layer = work->layer;
    Int d = work->d_model, n = size_of(work, block);
    float *state = work->state + first_of(work, block) * d;
    float *normal = malloc(n * (d + hidden_at_once(n, work->d_ff, layer)) * sizeof(float));
    if (!normal) return 1;
    normalise(n, d, state, layer->norms[2], normal);
    feed_forward(n, d, work->d_ff, normal, layer, normal + n * d, state);
    normalise(n, d, state, layer->norms[3], state);
    free(normal);
    return 0;
}

/* Returns whether there was too little memory. */
EXPORT int cells_forward(const Cells *cells) {
    Int d = cells->n_heads * cells->d_head, d_ff = cells->d_ff, n_threads = cells->n_threads;
    Int n_positions = cells->ends[cells->n_rows], widest = cells->binds ? 4 : 3;
    Int n_blocks = n_blocks_of(n_positions, n_threads);
    float *wide = malloc(n_positions * (widest + 1) * d * sizeof(float)), *panels = NULL;
    if (!wide) return 1;
    const Layer *layers = cells->layers;
    int is_float = layers->self_in.weight != NULL; /* products in int8 do without panels */
    if (n_blocks > n_threads && is_float && !layers->self_in.panels)
        panels = malloc(size_of_panels(d, d_ff, widest) * sizeof(float));
    Work work = {.n_positions = n_positions, .n_blocks = n_blocks, .d_model = d, .d_ff = d_ff,
                 .binds = cells->binds, .state = cells->state, .wide = wide,
                 .filler = wide + n_positions * widest * d};
    int decodes = cells->memory_ends != NULL;
    char *keys = (char *)cells->memory;
    Int n_memory = decodes ? cells->memory_ends[cells->n_rows] * d * (Int)sizeof(float) : 0;
    int failed = 0;
    for (Int number = 0; number < cells->n_layers && !failed; number++, keys += 2 * n_memory) {
        Layer layer = layers[number];
        if (panels) pack_layer(&layer, d, d_ff, widest, panels, n_threads);
        work.layer = &layer;
        for (work.sublayer = 0; work.sublayer < (decodes ? 2 : 1) && !failed; work.sublayer++) {
            int crosses = work.sublayer;
            Int width = ((crosses ? 1 : 3) + (cells->binds ? 1 : 0)) * d;
            Attention own = {.query = {(char *)wide, cells->d_head, width},
                             .key = {(char *)(wide + d), cells->d_head, width},
                             .value = {(char *)(wide + 2 * d), cells->d_head, width},
                             .filler = {(char *)work.filler, cells->d_head, d},
                             .query_ends = cells->ends, .key_ends = cells->ends,
                             .n_rows = cells->n_rows, .n_heads = cells->n_heads,
                             .d_head = cells->d_head, .causal = decodes && !crosses};
            if (crosses) {
                own.key = (View){keys, cells->d_head, d};
                own.value = (View){keys + n_memory, cells->d_head, d};
                own.key_ends = cells->memory_ends;
            }
            failed = (number || crosses
                          ? in_parallel(&work, before_attention, n_blocks, n_threads)
                          : before_first_attention(&work, width, n_threads)) ||
                     attention(&own, n_threads) ||
                     in_parallel(&work, after_attention, n_blocks, n_threads);
        }
        work.sublayer = 2;
        failed = failed || in_parallel(&work, after_attentions, n_blocks, n_threads);
    }
    free(panels);
    free(wide);
    return failed;
}

typedef struct {
    Int n_positions, n_blocks, n_layers, d_model;
    const Affine *maps;
    const float *state;
    float *memory;
} Remember;

static int remember(void *argument, Int block) {
    const Remember *work = argument;
    Int d = work->d_model, first = first_of_block(work->n_positions, work->n_blocks, block);
    Int n = size_of_block(work->n_positions, work->n_blocks, block);
    const float *state = work->state + first * d;
    for (Int layer = 0; layer < work->n_layers; layer++) {
        Affine key = work->maps[layer]; /* and value, without panels */
        Int stride = work->n_positions * d; /* from the keys to the values */
        float *memory = work->memory + 2 * layer * stride + first * d;
        if (key.int8) {
            int8_halves(n, state, key.int8, memory, stride);
        } else {
            affine(n, d, d, state, key, memory, PLAIN);
            affine(n, d, d, state, outputs_from(key, d, d), memory + stride, PLAIN);
        }
    }
    return 0;
}

/* The keys and values of the source for all layers: (layer, key or value, position, d_model). */
EXPORT int memory_forward(Int n_positions, Int n_layers, Int d_model, Int n_threads,
                          const Affine *maps, const float *state, float *memory) {
    Remember work = {.n_positions = n_positions, .n_layers = n_layers, .d_model = d_model,
                     .n_blocks = n_blocks_of(n_positions, n_threads), .maps = maps, .state = state,
                     .memory = memory};
    return in_parallel(&work, remember, work.n_blocks, n_threads);
}
