/* Packing of the weights of layers into panels (panels.h), once for many products. */

#include "panels.h"
#include "parallel.h"

/* Pack a weight (n_out, depth); returns the end of its panels. */
static float *pack_weight(Int n_out, Int depth, const float *weight, float *panels) {
    for (Int j = 0; j < n_out; j += PANEL, panels += PANEL * depth)
        for (Int start = 0; start < depth; start += MOST_DEPTH)
            pack(n_out - j < PANEL ? n_out - j : PANEL,
                 depth - start < MOST_DEPTH ? depth - start : MOST_DEPTH, depth,
                 weight + j * depth + start, panels + start * PANEL);
    return panels;
}

/* The same for a weight that is transposed already, (depth, n_out). */
static float *pack_transposed(Int n_out, Int depth, const float *weight, float *panels) {
    for (Int j = 0; j < n_out; j += PANEL)
        for (Int k = 0; k < depth; k++, panels += PANEL) {
            Int n = n_out - j < PANEL ? n_out - j : PANEL;
            memcpy(panels, weight + k * n_out + j, n * sizeof(float));
            memset(panels + n, 0, (PANEL - n) * sizeof(float));
        }
    return panels;
}

typedef struct {
    Affine *map;
    Int n_out, depth;
    float *panels;
} Packing;

static int pack_map(void *argument, Int number) {
    const Packing *packing = (Packing *)argument + number;
    pack_weight(packing->n_out, packing->depth, packing->map->weight, packing->panels);
    packing->map->panels = packing->panels;
    return 0;
}

Int size_of_panels(Int d_model, Int d_ff, Int n_self) {
    Int n_out = whole_panels(n_self * d_model) + whole_panels((n_self - 2) * d_model) +
                2 * whole_panels(d_model) + whole_panels(d_ff);
    return n_out * d_model + whole_panels(d_model) * d_ff;
}

void pack_layer(Layer *layer, Int d_model, Int d_ff, Int n_self, float *panels, Int n_threads) {
    Packing all[] = {{&layer->self_in, n_self * d_model, d_model, NULL},
                     {&layer->self_out, d_model, d_model, NULL},
                     {&layer->cross_in, (n_self - 2) * d_model, d_model, NULL},
                     {&layer->cross_out, d_model, d_model, NULL},
                     {&layer->expand, d_ff, d_model, NULL},
                     {&layer->contract, d_model, d_ff, NULL}};
    Int n = 0;
    for (Int i = 0; i < (Int)(sizeof(all) / sizeof(Packing)); i++) {
        if (!all[i].map->weight) continue; /* in int8, or cross-attention of an encoder */
        all[n] = all[i];
        all[n++].panels = panels;
        panels += whole_panels(all[i].n_out) * all[i].depth;
    }
    in_parallel(all, pack_map, n, n_threads);
}

typedef struct {
    Int d_model, d_head, size;
    Affine *maps;
    float *panels; /* `size` floats for each layer */
} Heads;

/* The maps of keys, transposed, and of values, for each head (absorbed.h). */
static int pack_heads_of_layer(void *argument, Int number) {
    const Heads *work = argument;
    Affine *map = work->maps + number;
    Int d = work->d_model, d_head = work->d_head;
    const float *key = map->weight, *value = key + d * d;
    float *panels = work->panels + number * work->size;
    map->panels = panels;
    for (Int row = 0; row < d; row += d_head)
        panels = pack_transposed(d, d_head, key + row * d, panels);
    for (Int row = 0; row < d; row += d_head)
        panels = pack_weight(d_head, d, value + row * d, panels);
    return 0;
}

/* Give layers their panels, of `size` floats each. Returns whether the panels are too small. */
EXPORT int pack_layers(Int n_layers, Int d_model, Int d_ff, Int binds, Int size, Int n_threads,
                       Layer *layers, float *panels) {
    Int n_self = binds ? 4 : 3;
    if (size < size_of_panels(d_model, d_ff, n_self)) return 1;
    for (Int number = 0; number < n_layers; number++)
        pack_layer(layers + number, d_model, d_ff, n_self, panels + number * size, n_threads);
    return 0;
}

/* Give the maps of keys and values their panels, in which each head starts a new one, of `size` floats
   for each layer. Returns whether the panels are too small. */
EXPORT int pack_heads(Int n_layers, Int d_model, Int d_head, Int size, Int n_threads, Affine *maps,
                      float *panels) {
    Int least = whole_panels(d_model) * d_head + whole_panels(d_head) * d_model;
    Heads work = {.d_model = d_model, .d_head = d_head, .size = size, .maps = maps,
                  .panels = panels};
    if (size < d_model / d_head * least) return 1;
    return in_parallel(&work, pack_heads_of_layer, n_layers, n_threads);
}
