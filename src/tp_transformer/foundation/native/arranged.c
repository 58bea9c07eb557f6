/* Weights of layers in panels (panels.h), for maps that are applied several times to many rows. */

#include <sys/mman.h>

#include "panels.h"
#include "parallel.h"

#define PAGE 4096

typedef struct {
    Int d_model, d_head, d_ff, n_self, size;
    Layer *layers;
    Affine *maps;
    float *panels; /* `size` floats for each layer */
} Work;

/* Arrange a weight (n_out, depth); returns the end of its panels. */
static float *arrange_weight(Int n_out, Int depth, const float *weight, float *panels) {
    for (Int j = 0; j < n_out; j += PANEL, panels += PANEL * depth)
        for (Int start = 0; start < depth; start += MOST_DEPTH)
            pack(n_out - j < PANEL ? n_out - j : PANEL,
                 depth - start < MOST_DEPTH ? depth - start : MOST_DEPTH, depth,
                 weight + j * depth + start, panels + start * PANEL);
    return panels;
}

/* The same for a weight (depth, n_out), which need not be transposed. */
static float *arrange_transposed(Int n_out, Int depth, const float *weight, float *panels) {
    for (Int j = 0; j < n_out; j += PANEL)
        for (Int k = 0; k < depth; k++, panels += PANEL)
            memcpy(panels, weight + k * n_out + j,
                   (n_out - j < PANEL ? n_out - j : PANEL) * sizeof(float));
    return panels;
}

/* Arrange the weight of a map, unless it is in int8. */
static float *arrange_map(Affine *map, Int n_out, Int depth, float *panels) {
    if (!map->weight) return panels;
    map->panels = panels;
    return arrange_weight(n_out, depth, map->weight, panels);
}

static int arrange_layer(void *argument, Int number) {
    const Work *work = argument;
    Int d = work->d_model, n_self = work->n_self, d_ff = work->d_ff;
    Layer *layer = work->layers + number;
    float *panels = work->panels + number * work->size;
    panels = arrange_map(&layer->self_in, n_self * d, d, panels);
    panels = arrange_map(&layer->self_out, d, d, panels);
    panels = arrange_map(&layer->cross_in, (n_self - 2) * d, d, panels);
    panels = arrange_map(&layer->cross_out, d, d, panels);
    panels = arrange_map(&layer->expand, d_ff, d, panels);
    arrange_map(&layer->contract, d, d_ff, panels);
    return 0;
}

/* The maps of keys, transposed, and of values, for each head (absorbed.h). */
static int arrange_heads(void *argument, Int number) {
    const Work *work = argument;
    Affine *map = work->maps + number;
    Int d = work->d_model, d_head = work->d_head;
    const float *key = map->weight, *value = key + d * d;
    float *panels = work->panels + number * work->size;
    map->panels = panels;
    for (Int row = 0; row < d; row += d_head)
        panels = arrange_transposed(d, d_head, key + row * d, panels);
    for (Int row = 0; row < d; row += d_head)
        panels = arrange_weight(d_head, d, value + row * d, panels);
    return 0;
}

/* Ask for large pages, because they are allocated and found sooner; the system may refuse. */
static void use_large_pages(float *start, Int size) {
#ifdef MADV_HUGEPAGE
    uintptr_t first = ((uintptr_t)start + PAGE - 1) / PAGE * PAGE, end = (uintptr_t)(start + size);
    if (end > first) madvise((void *)first, end - first, MADV_HUGEPAGE);
#endif
}

/* Sizes: layers, d_model, d_ff, whether roles are bound, floats for each layer, threads. The layers get
   their panels, which have the size of their weights, with numbers of outputs rounded up to PANEL. */
EXPORT int arrange_layers(const Int *sizes, Layer *layers, float *panels) {
    Work work = {.d_model = sizes[1], .d_ff = sizes[2], .n_self = sizes[3] ? 4 : 3,
                 .size = sizes[4], .layers = layers, .panels = panels};
    use_large_pages(panels, sizes[0] * sizes[4]);
    return in_parallel(&work, arrange_layer, sizes[0], sizes[5]);
}

/* Sizes: layers, d_model, d_head, floats for each layer, threads. The maps of keys and values get their
   panels; those of a head begin with a panel. */
EXPORT int arrange_maps(const Int *sizes, Affine *maps, float *panels) {
    Work work = {.d_model = sizes[1], .d_head = sizes[2], .size = sizes[3], .maps = maps,
                 .panels = panels};
    use_large_pages(panels, sizes[0] * sizes[3]);
    return in_parallel(&work, arrange_heads, sizes[0], sizes[4]);
}
