/* The structures that Python fills (ops/library.py). `struct_layout` tells how they lie in memory. */

#ifndef TPT_INTERFACE_H
#define TPT_INTERFACE_H

#include "int8.h"
#include "kernels.h"

typedef struct {
    const float *weight, *bias;
    const Int8Map *int8; /* the map in int8, instead of the weight and the bias */
    const float *panels; /* the weight in panels (panels.c), in addition, or NULL */
} Affine; /* also the gain and the bias of a normalisation */

typedef struct {
    Affine norms[4]; /* before self-attention, cross-attention, feed-forward layer; of the output */
    Affine self_in, self_out, cross_in, cross_out, expand, contract; /* encoders: without cross */
} Layer;

typedef struct {
    Affine role; /* its weight is NULL if embeddings are not bound */
    const float *symbols, *positions;
} Embedding;

typedef struct {
    char *data;
    Int head, position; /* strides in elements */
} View;

/* Attention within packed rows; with `d_query`, its gradient. */
typedef struct {
    View query, key, value, filler, d_query, d_key, d_value;
    View gradient;                    /* of the fillers */
    float *log_sum;                   /* (head, query): of each softmax; NULL if not needed */
    const Int *query_ends, *key_ends; /* where each row begins, and where the last one ends */
    Int n_rows, n_heads, d_head, kind, causal;
    Int most_keys; /* set by the kernel */
} Attention;

/* All cells of an encoder, or of a decoder for known targets, for packed rows. */
typedef struct {
    Int n_rows, n_layers, n_heads, d_head, d_ff, binds, n_threads;
    const Layer *layers;
    const float *memory;           /* (layer, key or value, source position, d_model) */
    const Int *ends, *memory_ends; /* the latter is NULL for an encoder */
    float *state; /* (position, d_model): the input, which the output replaces */
} Cells;

/* A step of the decoder. */
typedef struct {
    Int n_rows, n_questions, n_layers, n_heads, d_head, d_ff, n_vocab, position, room, binds;
    Int n_source, n_threads, n_blocks; /* positions of the source; blocks are set by the kernel */
    const Embedding *embedding;
    const Layer *layers;
    const float *memory; /* as for the cells; if it is NULL, steps read the source by the maps */
    const Affine *maps;  /* of keys and values, by layer, with panels of each head (panels.c) */
    const float *source; /* (source position, d_model) */
    const Int *starts, *lengths; /* of each question in the source */
    Int cache_rows;
    float *cache;         /* (layer, key or value, cache row, room, head, d_head) */
    const Int *cache_row; /* of each row; NULL if row i has cache row i */
    const Int *previous;
    float *logits;
} Step;

#endif
