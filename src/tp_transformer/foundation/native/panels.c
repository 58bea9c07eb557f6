/* Packing of the weights of layers into panels (panels.h), once for many products. */

#include "panels.h"
#include "parallel.h"

typedef struct {
    Int d_model, d_ff, n_self, d_head;
    Layer *layers; /* for `pack_layer`, with d_ff and n_self */
    Affine *maps;  /* for `pack_heads_of_layer`, with d_head */
    Int size;
    float *panels; /* `size` floats for each layer */
} Work;

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

/* Pack the weight of a map, unless it is in int8. */
static float *pack_map(Affine *map, Int n_out, Int depth, float *panels) {
    if (!map->weight) return panels;
    map->panels = panels;
    return pack_weight(n_out, depth, map->weight, panels);
}

static int pack_layer(void *argument, Int number) {
    const Work *work = argument;
    Int d = work->d_model, n_self = work->n_self, d_ff = work->d_ff;
    Layer *layer = work->layers + number;
    float *panels = work->panels + number * work->size;
    panels = pack_map(&layer->self_in, n_self * d, d, panels);
    panels = pack_map(&layer->self_out, d, d, panels);
    panels = pack_map(&layer->cross_in, (n_self - 2) * d, d, panels);
    panels = pack_map(&layer->cross_out, d, d, panels);
    panels = pack_map(&layer->expand, d_ff, d, panels);
    pack_map(&layer->contract, d, d_ff, panels);
    return 0;
}

/* The maps of keys, transposed, and of values, for each head (absorbed.h). */
static int pack_heads_of_layer(void *argument, Int number) {
    const Work *work = argument;
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

/* Give layers their panels. Sizes: layers, d_model, d_ff, whether roles are bound, floats for each layer,
   threads. Returns whether the panels are too small. */
EXPORT int pack_layers(const Int *sizes, Layer *layers, float *panels) {
    Int d = sizes[1], d_ff = sizes[2], n_self = sizes[3] ? 4 : 3;
    Int n_out = whole_panels(n_self * d) + whole_panels((n_self - 2) * d) + 2 * whole_panels(d) +
                whole_panels(d_ff);
    Work work = {.d_model = d, .d_ff = d_ff, .n_self = n_self, .layers = layers, .size = sizes[4],
                 .panels = panels};
    if (work.size < n_out * d + whole_panels(d) * d_ff) return 1;
    return in_parallel(&work, pack_layer, sizes[0], sizes[5]);
}

/* Give the maps of keys and values their panels, in which each head starts a new one. Sizes: layers,
   d_model, d_head, floats for each layer, threads. Returns whether the panels are too small. */
EXPORT int pack_heads(const Int *sizes, Affine *maps, float *panels) {
    Int d = sizes[1], d_head = sizes[2], n_heads = d / d_head;
    Work work = {.d_model = d, .d_head = d_head, .maps = maps, .size = sizes[3], .panels = panels};
    if (work.size < n_heads * (whole_panels(d) * d_head + whole_panels(d_head) * d)) return 1;
    return in_parallel(&work, pack_heads_of_layer, sizes[0], sizes[4]);
}
