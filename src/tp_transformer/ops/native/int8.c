/* Affine maps in int8: a row of inputs and a row of weights have a scale each, the largest absolute
   value divided by 127. Sums of products are exact, so the result of a row does not depend on the
   other rows, nor on the instructions of the processor.

   Weights are packed in blocks of 16 outputs: of each 4 inputs in turn, the 4 weights of the first
   output, of the second, and so on, 64 bytes. Four blocks alternate in a panel; fewer than four
   blocks at the end are panels of their own.

   VNNI multiplies unsigned by signed bytes: inputs are stored plus 128, and 128 times the sum of the
   weights is subtracted. AVX2 adds two such products with saturation to 16 bits, so there inputs are
   absolute values, and weights get the signs of the inputs: 2 * 127 * 127 < 2^15. */

#include "int8.h"
#include "parallel.h"

#define MOST 127
#define BLOCK 16          /* outputs of a block */
#define PANEL 4           /* blocks of a panel */
#define BLOCK_BYTES 64    /* of a block and four inputs */
#define ROWS_VNNI 6       /* of a tile: 24 sums, 4 vectors of weights, 1 of inputs */
#define ROWS_AVX2 4
#define LEAST_ROWS 8      /* of a task */
#define MOST_ROWS 240     /* whose inputs are rounded at a time */
#define MOST_BYTES 131072 /* of rounded inputs; more inputs than 65,536 could overflow the sums */

enum { AUTOMATIC = 0, AVX2 = 1, VNNI = 2 };

struct Int8Map {
    Int depth, n_out, instructions, padding[5];
    char data[]; /* by padded output: scale, bias, 128 times the sum of weights; then the weights */
};

/* Pointers to the parts of a map. */
typedef struct {
    Int n_groups, n_blocks; /* of 4 inputs; of 16 outputs */
    const float *scales, *bias;
    const int32_t *sums;
    const int8_t *weights;
} Parts;

/* The inputs and outputs of some rows of a block. */
typedef struct {
    const uint8_t *in;   /* (row, group, 4) */
    const float *scales; /* of the rows */
    float *out;
    Int in_stride, out_stride, n_valid; /* n_valid: outputs of this block that exist */
    int kind;
} Rows;

static Parts parts_of(const Int8Map *map) {
    Int n_blocks = (map->n_out + BLOCK - 1) / BLOCK, n = n_blocks * BLOCK;
    const float *scales = (const float *)map->data;
    return (Parts){(map->depth + 3) / 4, n_blocks, scales, scales + n,
                   (const int32_t *)(scales + 2 * n), (const int8_t *)(scales + 3 * n)};
}

/* Where the weights of a block start, and the bytes from one group of inputs to the next. */
static Int block_start(const Parts *parts, Int block, Int *stride) {
    Int panel = block / PANEL * PANEL, whole = panel + PANEL <= parts->n_blocks;
    *stride = whole ? PANEL * BLOCK_BYTES : BLOCK_BYTES;
    return (whole ? panel : block) * parts->n_groups * BLOCK_BYTES +
           (whole ? block - panel : 0) * BLOCK_BYTES;
}

/* Eight of the outputs of a row, with AVX2. */
INLINE void finish8(__m256i sums, __m256 row_scale, const float *scales, const float *bias,
                    float *out, int kind) {
    __m256 found = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), row_scale);
    found = _mm256_fmadd_ps(found, _mm256_loadu_ps(scales), _mm256_loadu_ps(bias));
    if (kind & ADDED) found = _mm256_add_ps(found, _mm256_loadu_ps(out));
    if (kind & RELU) found = _mm256_max_ps(_mm256_setzero_ps(), found); /* this order keeps NaN */
    _mm256_storeu_ps(out, found);
}

/* The 16 outputs of a block of a row. */
INLINE void finish16(__m256i low, __m256i high, const Rows *rows, Int row, const Parts *parts,
                     Int block) {
    const float *scales = parts->scales + block * BLOCK, *bias = parts->bias + block * BLOCK;
    __m256 scale = _mm256_set1_ps(rows->scales[row]);
    float *out = rows->out + row * rows->out_stride, last[BLOCK] = {0};
    if (rows->n_valid < BLOCK) memcpy(last, out, rows->n_valid * sizeof(float));
    float *to = rows->n_valid < BLOCK ? last : out;
    finish8(low, scale, scales, bias, to, rows->kind);
    finish8(high, scale, scales + 8, bias + 8, to + 8, rows->kind);
    if (rows->n_valid < BLOCK) memcpy(out, last, rows->n_valid * sizeof(float));
}

INLINE int32_t four(const Rows *rows, Int row, Int group) {
    int32_t found;
    memcpy(&found, rows->in + row * rows->in_stride + 4 * group, 4);
    return found;
}

/* Some rows of a block with AVX2. */
INLINE void tile_avx2(int n, const Rows *rows, const Parts *parts, Int block) {
    __m256i sums[ROWS_AVX2][2], ones = _mm256_set1_epi16(1);
    Int stride;
    const int8_t *weights = parts->weights + block_start(parts, block, &stride);
    for (int i = 0; i < n; i++) sums[i][0] = sums[i][1] = _mm256_setzero_si256();
    for (Int group = 0; group < parts->n_groups; group++, weights += stride) {
        for (int half = 0; half < 2; half++) {
            __m256i weight = _mm256_loadu_si256((const __m256i *)(weights + 32 * half));
            __m256i size = _mm256_abs_epi8(weight);
            for (int i = 0; i < n; i++) {
                __m256i in = _mm256_set1_epi32(four(rows, i, group));
                __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(in, weight));
                sums[i][half] = _mm256_add_epi32(sums[i][half], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
    for (int i = 0; i < n; i++) finish16(sums[i][0], sums[i][1], rows, i, parts, block);
}

#define UNROLLED _Pragma("GCC unroll 8")
#define WITH_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

#define INLINE_VNNI static inline __attribute__((always_inline)) WITH_VNNI

INLINE_VNNI __mmask16 first_lanes(Int n) { return n < 16 ? (__mmask16)((1 << n) - 1) : 0xffff; }

/* The valid outputs of a block of a row. */
INLINE_VNNI void finish_vnni(__m512i sums, __m512 row_scale, __m512 scales, __m512 bias, float *out,
                             __mmask16 valid, int kind) {
    __m512 found = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), row_scale);
    found = _mm512_fmadd_ps(found, scales, bias);
    if (kind & ADDED) found = _mm512_add_ps(found, _mm512_maskz_loadu_ps(valid, out));
    if (kind & RELU) found = _mm512_max_ps(_mm512_setzero_ps(), found); /* this order keeps NaN */
    if (valid == 0xffff)
        _mm512_storeu_ps(out, found);
    else
        _mm512_mask_storeu_ps(out, valid, found);
}

/* Some rows of `n_blocks` blocks with VNNI. */
INLINE_VNNI void tile_vnni(int n, int n_blocks, const Rows *rows, const Parts *parts, Int block) {
    __m512i sums[ROWS_VNNI][PANEL];
    Int stride;
    const int8_t *weights = parts->weights + block_start(parts, block, &stride);
    UNROLLED for (int j = 0; j < n_blocks; j++) {
        __m512i start = _mm512_sub_epi32(
            _mm512_setzero_si512(), _mm512_loadu_si512(parts->sums + (block + j) * BLOCK));
        UNROLLED for (int i = 0; i < n; i++) sums[i][j] = start;
    }
    for (Int group = 0; group < parts->n_groups; group++, weights += stride) {
        __m512i weight[PANEL];
        UNROLLED for (int j = 0; j < n_blocks; j++)
            weight[j] = _mm512_loadu_si512(weights + j * BLOCK_BYTES);
        UNROLLED for (int i = 0; i < n; i++) {
            __m512i in = _mm512_set1_epi32(four(rows, i, group));
            UNROLLED for (int j = 0; j < n_blocks; j++)
                sums[i][j] = _mm512_dpbusd_epi32(sums[i][j], in, weight[j]);
        }
    }
    __m512i found[ROWS_VNNI][PANEL]; /* a copy, or else the compiler keeps the sums in memory */
    UNROLLED for (int i = 0; i < n; i++)
        UNROLLED for (int j = 0; j < n_blocks; j++) _mm512_storeu_si512(&found[i][j], sums[i][j]);
    for (int j = 0; j < n_blocks; j++) {
        __m512 scales = _mm512_loadu_ps(parts->scales + (block + j) * BLOCK);
        __m512 bias = _mm512_loadu_ps(parts->bias + (block + j) * BLOCK);
        __mmask16 valid = first_lanes(rows->n_valid - j * BLOCK);
        for (int i = 0; i < n; i++)
            finish_vnni(_mm512_loadu_si512(&found[i][j]), _mm512_set1_ps(rows->scales[i]), scales, bias,
                        rows->out + i * rows->out_stride + j * BLOCK, valid, rows->kind);
    }
}

/* All rows of a block, or of a panel if it has four. */
#define ROW_TILES(most, tile)                                              \
    for (; n_rows >= most; n_rows -= most) {                               \
        tile(most);                                                        \
        rows.in += most * rows.in_stride, rows.scales += most;             \
        rows.out += most * rows.out_stride;                                \
    }

static void block_avx2(Int n_rows, Rows rows, const Parts *parts, Int block) {
#define TILE(n) tile_avx2(n, &rows, parts, block)
    ROW_TILES(ROWS_AVX2, TILE)
    if (n_rows == 3) TILE(3);
    if (n_rows == 2) TILE(2);
    if (n_rows == 1) TILE(1);
#undef TILE
}

static WITH_VNNI void panel_vnni(Int n_rows, Rows rows, const Parts *parts, Int block) {
#define TILE(n) tile_vnni(n, PANEL, &rows, parts, block)
    ROW_TILES(ROWS_VNNI, TILE)
    if (n_rows == 5) TILE(5);
    if (n_rows == 4) TILE(4);
    if (n_rows == 3) TILE(3);
    if (n_rows == 2) TILE(2);
    if (n_rows == 1) TILE(1);
#undef TILE
}

static WITH_VNNI void block_vnni(Int n_rows, Rows rows, const Parts *parts, Int block) {
#define TILE(n) tile_vnni(n, 1, &rows, parts, block)
    ROW_TILES(ROWS_VNNI, TILE)
    ROW_TILES(1, TILE)
#undef TILE
}

/* The factor by which a row is multiplied before it is rounded. A row that has NaN or infinity gets
   such a scale; one whose numbers are all (nearly) 0 becomes 0. */
INLINE float factor_of(float *largest) {
    float inverse = MOST / *largest;
    if (!isinf(inverse)) return inverse;
    return *largest = 0;
}

/* Round a row of inputs; return its scale. */
static float quantise_avx2(Int depth, const float *in, uint8_t *out, Int n_bytes) {
    __m256i sign = _mm256_set1_epi32(INT32_MAX), most = _mm256_setzero_si256();
    Int i = 0;
    for (; i + WIDTH <= depth; i += WIDTH) /* as integers, absolute values have the same order */
        most = _mm256_max_epi32(
            most, _mm256_and_si256(sign, _mm256_loadu_si256((const __m256i *)(in + i))));
    float found[WIDTH], largest = 0;
    _mm256_storeu_ps(found, _mm256_castsi256_ps(most));
    for (int j = 0; j < WIDTH; j++)
        if (!(found[j] <= largest)) largest = found[j];
    for (Int j = i; j < depth; j++)
        if (!(fabsf(in[j]) <= largest)) largest = fabsf(in[j]);
    float inverse = factor_of(&largest);
    __m256 factor = _mm256_set1_ps(inverse);
    for (i = 0; i + WIDTH <= depth; i += WIDTH) {
        __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(in + i), factor));
        __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(whole),
                                       _mm256_extracti128_si256(whole, 1));
        _mm_storel_epi64((__m128i *)(out + i), _mm_packs_epi16(half, half));
    }
    for (; i < depth; i++) out[i] = (uint8_t)_mm_cvtss_si32(_mm_set_ss(in[i] * inverse));
    for (; i < n_bytes; i++) out[i] = 0;
    return largest / MOST;
}

/* The same, plus 128. */
static WITH_VNNI float quantise_vnni(Int depth, const float *in, uint8_t *out, Int n_bytes) {
    __m512i sign = _mm512_set1_epi32(INT32_MAX), most = _mm512_setzero_si512();
    for (Int i = 0; i < depth; i += 16) {
        __m512i bits = _mm512_maskz_loadu_epi32(first_lanes(depth - i), in + i);
        most = _mm512_max_epi32(most, _mm512_and_si512(sign, bits));
    }
    int32_t bits = _mm512_reduce_max_epi32(most);
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    __m512 factor = _mm512_set1_ps(factor_of(&largest));
    __m128i offset = _mm_set1_epi8((char)(MOST + 1));
    for (Int i = 0; i < n_bytes; i += 16) {
        __m512 numbers = _mm512_maskz_loadu_ps(first_lanes(depth - i), in + i);
        __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(numbers, factor));
        __m128i bytes = _mm_add_epi8(_mm512_cvtsepi32_epi8(whole), offset);
        _mm_mask_storeu_epi8(out + i, first_lanes(n_bytes - i), bytes);
    }
    return largest / MOST;
}

/* Where the outputs of a row are written: in `n_parts` parts of `width` outputs, whose rows are
   contiguous, and which are `stride` apart. */
typedef struct {
    float *out;
    Int n_parts, width, stride;
    int kind;
} Outputs;

/* At most as many rows as there is memory for. */
static void some_rows(Int n_rows, const float *in, const Int8Map *map, Outputs outputs,
                      float *scales, uint8_t *rounded) {
    Parts parts = parts_of(map);
    Int n_bytes = 4 * parts.n_groups, n_blocks = (outputs.width + BLOCK - 1) / BLOCK;
    for (Int row = 0; row < n_rows; row++)
        scales[row] = (map->instructions == VNNI ? quantise_vnni : quantise_avx2)(
            map->depth, in + row * map->depth, rounded + row * n_bytes, n_bytes);
    for (Int part = 0; part < outputs.n_parts; part++)
        for (Int own = 0; own < n_blocks;) {
            Int block = part * n_blocks + own;
            Rows rows = {rounded, scales, outputs.out + part * outputs.stride + own * BLOCK,
                         n_bytes, outputs.width, outputs.width - own * BLOCK, outputs.kind};
            if (map->instructions != VNNI) {
                block_avx2(n_rows, rows, &parts, block), own++;
            } else if (block % PANEL == 0 && own + PANEL <= n_blocks) {
                panel_vnni(n_rows, rows, &parts, block), own += PANEL;
            } else {
                block_vnni(n_rows, rows, &parts, block), own++;
            }
        }
}

static void all_rows(Int n_rows, const float *in, const Int8Map *map, Outputs outputs) {
    float scales[MOST_ROWS];
    uint8_t rounded[MOST_BYTES];
    Int fit = MOST_BYTES / ((map->depth + 3) / 4 * 4), tiles = fit / ROWS_VNNI * ROWS_VNNI;
    Int most = fit > MOST_ROWS ? MOST_ROWS : tiles ? tiles : fit;
    for (Int first = 0; first < n_rows; first += most) {
        Outputs own = outputs;
        own.out += first * outputs.width;
        some_rows(n_rows - first < most ? n_rows - first : most, in + first * map->depth, map, own,
                  scales, rounded);
    }
}

void int8_affine(Int n_rows, const float *in, const Int8Map *map, float *out, int kind) {
    all_rows(n_rows, in, map, (Outputs){out, 1, map->n_out, 0, kind});
}

void int8_halves(Int n_rows, const float *in, const Int8Map *map, float *out, Int stride) {
    all_rows(n_rows, in, map, (Outputs){out, 2, map->n_out / 2, stride, PLAIN});
}

/* Instructions 0 are the fastest of this processor. `weight` (out, in) has numbers from -127 to 127; `bias` may be NULL. The map has 64 bytes, and for each of the outputs,
   rounded up to a multiple of 16, 12 bytes and the inputs, rounded up to a multiple of 4. */
EXPORT int int8_pack(Int depth, Int n_out, Int instructions, const int8_t *weight,
                     const float *scales, const float *bias, Int8Map *map) {
    Int stride;
    map->depth = depth, map->n_out = n_out;
    int has_vnni = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl");
    map->instructions = has_vnni && instructions != AVX2 ? VNNI : AVX2;
    Parts parts = parts_of(map);
    Int n = parts.n_blocks * BLOCK;
    memset(map->data, 0, n * (12 + 4 * parts.n_groups));
    for (Int output = 0; output < n_out; output++) {
        int32_t sum = 0;
        int8_t *to = (int8_t *)parts.weights + block_start(&parts, output / BLOCK, &stride) +
                     output % BLOCK * 4;
        for (Int i = 0; i < depth; i++) {
            int8_t one = weight[output * depth + i];
            to[i / 4 * stride + i % 4] = one;
            sum += one;
        }
        ((float *)parts.scales)[output] = scales[output];
        ((float *)parts.bias)[output] = bias ? bias[output] : 0;
        ((int32_t *)parts.sums)[output] = (MOST + 1) * sum;
    }
    return 0;
}

typedef struct {
    Int n_rows, at_once;
    const float *in;
    const Int8Map *map;
    float *out;
} Linear;

static int run_rows(void *work, Int block) {
    const Linear *linear = work;
    Int first = block * linear->at_once, rest = linear->n_rows - first;
    Int n = rest < linear->at_once ? rest : linear->at_once;
    int8_affine(n, linear->in + first * linear->map->depth, linear->map,
                linear->out + first * linear->map->n_out, PLAIN);
    return 0;
}

EXPORT int int8_linear(Int n_rows, Int n_threads, const float *in, const Int8Map *map, float *out) {
    Int share = (n_rows + n_threads - 1) / n_threads;
    if (share < LEAST_ROWS) share = LEAST_ROWS;
    Linear linear = {n_rows, share < MOST_ROWS ? share : MOST_ROWS, in, map, out};
    return in_parallel(&linear, run_rows, (n_rows + linear.at_once - 1) / linear.at_once, n_threads);
}
