/* Cross-attention without keys and values: their maps are applied to queries and fillers instead. */

#ifndef TPT_ABSORBED_H
#define TPT_ABSORBED_H

#include "kernels.h"

typedef struct {
    const float *states; /* (length, d_model) */
    Int length;
} Source;

/* The fillers (row, head, d_head) of `n_rows` queries, which are `query_row` apart, each for its
   source. `panels` has the maps of keys and values (panels.c), `bias` their biases. Returns whether
   there was too little memory. */
int absorbed_attention(Int n_rows, Int n_heads, Int d_head, const float *queries, Int query_row,
                       const Source *sources, const float *panels, const float *bias,
                       float *fillers);

#endif
