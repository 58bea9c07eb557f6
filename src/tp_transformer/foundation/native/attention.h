/* The arguments of attention within packed rows. */

#ifndef TPT_ATTENTION_H
#define TPT_ATTENTION_H

#include "kernels.h"

#define BLOCK 24 /* queries at a time, an even number; their weights fit into the first-level cache */

typedef struct {
    const char *data;
    Int head, position; /* strides in elements */
} View;

typedef struct {
    char *data;
    Int head, position;
} Result;

typedef struct {
    View query, key, value, gradient; /* the gradient of the fillers, if this is backward */
    Result filler, d_query, d_key, d_value;
    float *log_sum;                   /* (head, query): of each softmax; NULL if not needed */
    const Int *query_ends, *key_ends; /* where each row begins, and where the last one ends */
    Int n_rows, n_heads, d_head, kind, causal;
    Int most_keys;
} Work;

/* One head of one row in bfloat16, for processors that multiply it. */
int multiplies_bfloat16(const Work *work); /* whether these can be used */
Int bfloat16_scratch(Int most_keys, Int d_head); /* bytes */
void forward_bfloat16(const Work *work, Int row, Int head, char *scratch);
void backward_bfloat16(const Work *work, Int row, Int head, char *scratch);

#endif
