// Prints the rate of this machine's time-stamp counter, which is the guest's too, in kHz.
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

enum { NS_PER_MS = 1000000, APART_NS = 100 * NS_PER_MS, TRIES = 64 };

struct moment {
  int64_t ns;
  uint64_t ticks;
};

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

// Both clocks at once: of some readings the one that took the shortest, and so was not interrupted.
static struct moment read_both(void) {
  struct moment best = {0};
  uint64_t shortest = UINT64_MAX;
  for (int i = 0; i < TRIES; i++) {
    uint64_t before = __rdtsc();
    int64_t ns = now_ns();
    uint64_t took = __rdtsc() - before;
    if (took < shortest) {
      shortest = took;
      best = (struct moment){.ns = ns, .ticks = before + took / 2};
    }
  }
  return best;
}

int main(void) {
  struct moment first = read_both();
  nanosleep(&(struct timespec){.tv_nsec = APART_NS}, NULL);
  struct moment last = read_both();
  double ms = (double)(last.ns - first.ns) / NS_PER_MS;
  printf("%.0f\n", (double)(last.ticks - first.ticks) / ms);
  return 0;
}
