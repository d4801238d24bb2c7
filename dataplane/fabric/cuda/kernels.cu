// Kernels of the copy engine: checksums of device memory, and many small copies at once.
//
// Compiled to PTX by integration-tests/scripts/kernels.sh (`make kernels`), which the library
// carries and the driver finishes for the GPU that is there. No header is included.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char u8;

// A block's threads take one row at a time, 16 bytes each.
#define THREADS 256
#define ROW_BYTES (16 * THREADS)
#define ROW_BITS_LOG2 15

// ---------------------------------------------------------------------------------------------
// CRC of device memory.
//
// A CRC is a remainder: the bytes, as a polynomial over GF(2), times x^64, modulo M. Polynomials
// are reflected as CRCs have them: bit 0 is the coefficient of x^63. 32-bit CRCs are computed
// modulo x^32 times theirs, which leaves theirs in the low half, so one kernel serves all.
//
// Sketch: a thread keeps two words, those at its place in the rows so far: multiplied by
// x^(bits of a row) before the next row's are added. That product is 16 look-ups, one for each
// four bits, in a table of 2 KiB that lies 16 times in shared memory, so that no two threads of a
// half warp ever want the same bank. Bound by those: 32 cycles per warp and 256 bytes, 8 bytes a
// cycle and multiprocessor. At its end a block's words are summed by their places, in a tree that
// multiplies by known powers of x, multiplied by what follows the block, and added (exclusive or)
// to the result: about 20 products of 300 cycles each, whatever the block's length.

struct Modulus {
    u64 poly;
    // [k][n] = x^(2^k + 16 n) modulo M.
    u64 powers[48][4];
    // [n][v] = v x^(bits of a row), v standing at four bits n.
    u64 table[16][16];
};

__device__ static inline u64 times_x(u64 a, u64 poly) {
    return (a >> 1) ^ (poly & (0ull - (a & 1)));
}

// a x^(2^k) modulo M, out of powers[k]: four sums at once, each of 16 of a's coefficients.
__device__ static inline u64 times_power(u64 a, const u64 *power, u64 poly) {
    u64 shifted[4], sums[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        shifted[n] = power[n];
        sums[n] = 0;
    }
#pragma unroll 4
    for (int bit = 0; bit < 16; bit++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            sums[n] ^= shifted[n] & (0ull - ((a >> (63 - 16 * n)) & 1));
            shifted[n] = times_x(shifted[n], poly);
        }
        a <<= 1;
    }
    return sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
}

// `entry` is this thread's copy of the table.
__device__ static inline u64 next_row(u64 a, const u64 *entry) {
    u32 low = (u32)a, high = (u32)(a >> 32);
    u64 sum = 0;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        sum ^= entry[n * 256 + ((low >> (4 * n)) & 15) * 16];
        sum ^= entry[(n + 8) * 256 + ((high >> (4 * n)) & 15) * 16];
    }
    return sum;
}

// The words of a granule of 16 bytes; those before the first byte are zero.
__device__ static inline void granule(const u8 *body, long long at, u32 skip, u64 *words) {
    words[0] = 0;
    words[1] = 0;
    if (at > 0 || (at == 0 && skip == 0)) {
        const ulonglong2 both = *(const ulonglong2 *)(body + at * 16);
        words[0] = both.x;
        words[1] = both.y;
    } else if (at == 0) {
        for (u32 byte = skip; byte < 16; byte++) {
            words[byte >> 3] |= (u64)body[byte] << (8 * (byte & 7));
        }
    }
}

// Adds the CRC of data[0..bytes], without initial value and final complement, to `result`.
// Block e takes the rows_per_block rows that end e * rows_per_block rows before the end.
extern "C" __global__ void __launch_bounds__(THREADS, 6)
keyway_digest(const u8 *data, u64 bytes, u64 rows_per_block, const __grid_constant__ Modulus m,
              u64 *result) {
    __shared__ u64 shared[16 * 16 * 16];
    __shared__ u64 sums[THREADS / 32];
    const u32 thread = threadIdx.x;
    const u64 poly = m.poly;
    for (u32 at = thread; at < 16 * 16 * 16; at += THREADS) {
        shared[at] = m.table[at >> 8][(at >> 4) & 15];
    }
    __syncthreads();

    // Whole granules, the first of them maybe in part; what is left is the tail.
    const u32 skip = (u32)((u64)data & 15);
    const u8 *body = data - skip;
    const u64 granules = (skip + bytes) / 16;
    const u64 rows = (granules + THREADS - 1) / THREADS;
    const long long padding = (long long)(rows * THREADS - granules);
    const u64 behind = blockIdx.x * rows_per_block;
    const u64 end = rows > behind ? rows - behind : 0;
    const u64 begin = end > rows_per_block ? end - rows_per_block : 0;

    const u64 *entry = shared + (thread & 15);
    u64 words[2] = {0, 0};
    u64 row = begin;
    // The first row may begin before the bytes do.
    if (row == 0 && row < end) {
        granule(body, (long long)thread - padding, skip, words);
        row++;
    }
    const ulonglong2 *source =
        (const ulonglong2 *)body + ((long long)(row * THREADS) - padding + thread);
    for (; row + 4 <= end; row += 4, source += 4 * THREADS) {
        ulonglong2 next[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            next[n] = source[n * THREADS];
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            words[0] = next_row(words[0], entry) ^ next[n].x;
            words[1] = next_row(words[1], entry) ^ next[n].y;
        }
    }
    for (; row < end; row++, source += THREADS) {
        const ulonglong2 next = *source;
        words[0] = next_row(words[0], entry) ^ next.x;
        words[1] = next_row(words[1], entry) ^ next.y;
    }

    // The words of a row, summed by their places: a thread's two, then a warp's, then the block's.
    u64 sum = times_power(words[0], m.powers[6], poly) ^ words[1];
    for (u32 level = 0; level < 5; level++) {
        const u64 next = __shfl_down_sync(~0u, sum, 1u << level);
        sum = times_power(sum, m.powers[7 + level], poly) ^ next;
    }
    if ((thread & 31) == 0) {
        sums[thread >> 5] = sum;
    }
    __syncthreads();
    if (thread >= 32) {
        return;
    }
    sum = sums[thread & (THREADS / 32 - 1)];
    for (u32 level = 0; level < 3; level++) {
        const u64 next = __shfl_down_sync(~0u, sum, 1u << level);
        sum = times_power(sum, m.powers[12 + level], poly) ^ next;
    }
    if (thread == 0) {
        const u32 tail = (u32)((skip + bytes) & 15);
        u64 shift = ((u64)behind << ROW_BITS_LOG2) + 64 + 8 * (granules > 0 ? tail : 0);
        for (u32 k = 0; shift != 0; k++, shift >>= 1) {
            if (shift & 1) {
                sum = times_power(sum, m.powers[k], poly);
            }
        }
        if (blockIdx.x == 0) {
            // The last bytes, or all where they are fewer than a granule.
            const u8 *last = granules > 0 ? body + 16 * granules : data;
            u64 crc = 0;
            for (; last < data + bytes; last++) {
                crc ^= *last;
                for (int bit = 0; bit < 8; bit++) {
                    crc = times_x(crc, poly);
                }
            }
            sum ^= crc;
        }
        atomicXor(result, sum);
    }
}

// ---------------------------------------------------------------------------------------------
// Many small copies between pinned host memory and the device.
//
// Sketch: a warp takes one run at a time and asks for up to 4 KiB before it waits, since the way
// over the bus takes microseconds. Bound by the bus; a few thousand threads fill it.

struct Run {
    u64 from, to, bytes;
};

template <typename T>
__device__ static inline void move(const u8 *from, u8 *to, u64 count, u32 lane) {
    const T *source = (const T *)from;
    T *target = (T *)to;
    u64 at = lane;
    for (; at + 7 * 32 < count; at += 8 * 32) {
        T held[8];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            held[n] = source[at + n * 32];
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            target[at + n * 32] = held[n];
        }
    }
    for (; at < count; at += 32) {
        target[at] = source[at];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
keyway_move(const Run *runs, u32 count) {
    const u32 lane = threadIdx.x & 31;
    const u32 warps = gridDim.x * (THREADS / 32);
    for (u32 at = (blockIdx.x * THREADS + threadIdx.x) / 32; at < count; at += warps) {
        const u8 *from = (const u8 *)runs[at].from;
        u8 *to = (u8 *)runs[at].to;
        u64 bytes = runs[at].bytes;
        const u64 apart = (u64)from ^ (u64)to;
        const u32 unit = (apart & 15) == 0 ? 16 : (apart & 3) == 0 ? 4 : 1;
        // Up to where both sides are aligned.
        u64 head = (unit - ((u64)from & (unit - 1))) & (unit - 1);
        head = head < bytes ? head : bytes;
        move<u8>(from, to, head, lane);
        from += head;
        to += head;
        bytes -= head;
        const u64 body = bytes & ~(u64)(unit - 1);
        if (unit == 16) {
            move<uint4>(from, to, body / 16, lane);
        } else if (unit == 4) {
            move<u32>(from, to, body / 4, lane);
        } else {
            move<u8>(from, to, body, lane);
        }
        move<u8>(from + body, to + body, bytes - body, lane);
    }
}
