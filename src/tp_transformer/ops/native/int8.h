/* Affine maps whose weights and inputs are rounded to int8, with exact sums in int32. */

#ifndef TPT_INT8_H
#define TPT_INT8_H

#include "kernels.h"

typedef struct Int8Map Int8Map; /* a map as `int8_pack` writes it */

/* out (row, n_out) = in (row, depth) times the transposed weight, plus bias; kind has flags of outputs. */
void int8_affine(Int n_rows, const float *in, const Int8Map *map, float *out, int kind);

/* The same, but the two halves of the outputs are (row, n_out / 2) each, and `stride` apart. n_out is
   a multiple of 32. */
void int8_halves(Int n_rows, const float *in, const Int8Map *map, float *out, Int stride);

#endif
