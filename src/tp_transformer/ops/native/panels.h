/* Products of many rows with the weight of a map, a panel at a time.

   A panel has PANEL outputs of a part of the inputs, in the order of `pack`. Packing the weights for
   each product is an eighth of its time for 64 rows; a map may have packed weights instead. */

#ifndef TPT_PANELS_H
#define TPT_PANELS_H

#include "interface.h"

#define PANEL 16       /* outputs that are computed at a time */
#define TILE 6         /* rows that are computed at a time */
#define MOST_DEPTH 512 /* of a panel of weights; with 256, outputs are added to memory more often */

/* Copy `n` rows of weights to a panel (depth, PANEL), with zeros for the missing ones. */
static void pack(Int n, Int depth, Int stride, const float *weight, float *panel) {
    if (n < PANEL) {
        memset(panel, 0, depth * PANEL * sizeof(float));
        for (Int j = 0; j < n; j++)
            for (Int k = 0; k < depth; k++) panel[k * PANEL + j] = weight[j * stride + k];
        return;
    }
    for (Int k = 0; k < depth; k += 2 * WIDTH) /* a line of the cache of each row */
        for (Int j = 0; j < PANEL; j += WIDTH)
            for (Int i = k; i < k + 2 * WIDTH && i < depth; i += WIDTH)
                copy_transposed8(weight + j * stride + i, stride, panel + i * PANEL + j, PANEL);
}

/* PANEL outputs of up to TILE rows, whose sums stay in registers. */
INLINE void tile(int rows, Int depth, const float *in, Int in_row, const float *panel,
                 const float *bias, float *out, Int out_row, int kind) {
    __m256 sums[TILE][2];
    for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = _mm256_setzero_ps();
    for (Int k = 0; k < depth; k++) {
        __m256 right[2] = {_mm256_loadu_ps(panel + k * PANEL),
                           _mm256_loadu_ps(panel + k * PANEL + WIDTH)};
        for (int i = 0; i < rows; i++) {
            __m256 left = _mm256_broadcast_ss(in + i * in_row + k);
            sums[i][0] = _mm256_fmadd_ps(left, right[0], sums[i][0]);
            sums[i][1] = _mm256_fmadd_ps(left, right[1], sums[i][1]);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < 2; j++) {
            __m256 sum = sums[i][j];
            float *to = out + i * out_row + j * WIDTH;
            if (bias) sum = _mm256_add_ps(sum, _mm256_loadu_ps(bias + j * WIDTH));
            if (kind & ADDED) sum = _mm256_add_ps(sum, _mm256_loadu_ps(to));
            if (kind & RELU) sum = _mm256_max_ps(_mm256_setzero_ps(), sum); /* keeps NaN */
            _mm256_storeu_ps(to, sum);
        }
}

static void tile_of(Int rows, Int depth, const float *in, Int in_row, const float *panel,
                    const float *bias, float *out, Int out_row, int kind) {
    switch (rows) {
    case 6: tile(6, depth, in, in_row, panel, bias, out, out_row, kind); break;
    case 5: tile(5, depth, in, in_row, panel, bias, out, out_row, kind); break;
    case 4: tile(4, depth, in, in_row, panel, bias, out, out_row, kind); break;
    case 3: tile(3, depth, in, in_row, panel, bias, out, out_row, kind); break;
    case 2: tile(2, depth, in, in_row, panel, bias, out, out_row, kind); break;
    case 1: tile(1, depth, in, in_row, panel, bias, out, out_row, kind); break;
    }
}

/* The same if the map has only `n` further outputs, fewer than PANEL. */
static void edge_of(Int n, Int rows, Int depth, const float *in, Int in_row, const float *panel,
                    const float *bias, float *out, Int out_row, int kind) {
    float outputs[TILE * PANEL] = {0}, biases[PANEL] = {0};
    for (Int i = 0; i < rows; i++) memcpy(outputs + i * PANEL, out + i * out_row, n * sizeof(float));
    if (bias) memcpy(biases, bias, n * sizeof(float));
    tile_of(rows, depth, in, in_row, panel, biases, outputs, PANEL, kind);
    for (Int i = 0; i < rows; i++) memcpy(out + i * out_row, outputs + i * PANEL, n * sizeof(float));
}

/* The outputs of a panel for all rows. Meanwhile the weights of the next panel, if there is one, are
   fetched to the second-level cache: a quarter of the time for 16 rows. They are in rows that are
   `stride` apart, or in a panel if that is 0. */
static void by_panel(Int n, Int n_rows, Int depth, Int stride, const float *in, Int in_row,
                     const float *panel, const float *next, const float *bias, float *out,
                     Int out_row, int kind) {
    Int n_lines = next ? depth / (2 * WIDTH) * PANEL : 0, line = 0;
    Int at_once = n_lines / ((n_rows + TILE - 1) / TILE) + 1;
    for (Int row = 0; row < n_rows; row += TILE) {
        for (Int i = 0; i < at_once && line < n_lines; i++, line++) {
            Int place = stride ? line % PANEL * stride + line / PANEL * 2 * WIDTH : line * 2 * WIDTH;
            _mm_prefetch((const char *)(next + place), _MM_HINT_T1);
        }
        Int rows = n_rows - row < TILE ? n_rows - row : TILE;
        const float *from = in + row * in_row;
        float *to = out + row * out_row;
        if (n == PANEL) tile_of(rows, depth, from, in_row, panel, bias, to, out_row, kind);
        else edge_of(n, rows, depth, from, in_row, panel, bias, to, out_row, kind);
    }
}

/* All outputs of many rows, a panel of weights at a time, which stays in the fast caches. */
SHARED void by_panels(Int n_rows, Int depth, Int stride, Int n_out, const float *in, Int in_row,
                      Affine map, float *out, Int out_row, int kind) {
    float own[MOST_DEPTH * PANEL];
    for (Int start = 0; start < depth; start += MOST_DEPTH) {
        Int part = depth - start < MOST_DEPTH ? depth - start : MOST_DEPTH;
        int adds = start ? ADDED : kind & ADDED, last = start + part == depth ? kind & RELU : 0;
        for (Int j = 0; j < n_out; j += PANEL) {
            Int n = n_out - j < PANEL ? n_out - j : PANEL;
            const float *weight = map.weight + j * stride + start, *panel = own;
            if (map.panels) panel = weight = map.panels + j * stride + start * PANEL;
            else pack(n, part, stride, weight, own);
            by_panel(n, n_rows, part, map.panels ? 0 : stride, in + start, in_row, panel,
                     j + 2 * PANEL <= n_out ? weight + PANEL * stride : NULL,
                     start || !map.bias ? NULL : map.bias + j, out + j, out_row, adds | last);
        }
    }
}

/* Floats that `pack_layer` needs. */
Int size_of_panels(Int d_model, Int d_ff, Int n_self);

/* Pack the maps of a layer, those in float32; `n_self` is the number of projections of
   self-attention. */
void pack_layer(Layer *layer, Int d_model, Int d_ff, Int n_self, float *panels, Int n_threads);

INLINE Int whole_panels(Int n_out) { return (n_out + PANEL - 1) / PANEL * PANEL; }

/* The same map without its first `start` outputs, a multiple of PANEL if the map has panels. */
INLINE Affine outputs_from(Affine map, Int start, Int depth) {
    return (Affine){map.weight + start * depth, map.bias + start, NULL,
                    map.panels ? map.panels + start * depth : NULL};
}

#endif
