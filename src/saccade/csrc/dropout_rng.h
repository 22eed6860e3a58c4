/* Random bits of dropout. */

#ifndef SACCADE_CHANCE_H
#define SACCADE_CHANCE_H

#include "simd.h"

/* Dropout: 16 random bits an entry, a hash of the seed and of the entry's place, so that the way back draws them again
 * instead of reading a mask. A word has the bits of two entries, a block as many words as there are lanes: another level
 * of instructions draws other bits. */
#define BLOCK (2 * LANES)

typedef struct {
    uint32_t seed, salt;
    int32_t dropped; /* of 65536 */
    float scale;
} chance;

INLINE chance chance_of(uint64_t seed, int32_t dropped)
{
    chance c = {(uint32_t)seed, (uint32_t)(seed >> 32), dropped, 65536.0f / (65536 - dropped)};
    return c;
}

INLINE word_lanes random_words(const chance *c, uint32_t block)
{
    const word_lanes lane = COUNTING;
    word_lanes x = (lane + block * LANES) * 0x9e3779b9u + c->seed;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= (x >> 15) ^ c->salt;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

/* Factors of the entries of a block: 0 or the scale. */
INLINE void factors(const chance *c, uint32_t block, lanes *low, lanes *high)
{
    word_lanes words = random_words(c, block);
    int_lanes first = (int_lanes)(words & 0xffffu) >= c->dropped;
    int_lanes second = (int_lanes)(words >> 16) >= c->dropped;
    *low = (lanes)((int_lanes)all(c->scale) & first);
    *high = (lanes)((int_lanes)all(c->scale) & second);
}

#endif
