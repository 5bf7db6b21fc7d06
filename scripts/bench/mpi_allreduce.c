/*
 * Times MPI_Allreduce of floats on one machine, the way `kedge bench comm` times its own: calls back
 * to back, each timed on rank 0, medians. Built and run by scripts/bench/comm-vs-mpi; no part of the
 * build.
 *
 *   mpi_allreduce CALLS BYTES...     prints "BYTES MEDIAN_US P99_US" a size
 *
 * Rank r is bound to the (r mod n)th core this process may use, as `kedge bench comm --pin` does.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_ns(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void bind_core(int rank)
{
    cpu_set_t may, one;
    int n, left;

    if (sched_getaffinity(0, sizeof(may), &may) != 0)
        return;
    n = CPU_COUNT(&may);
    left = rank % n;
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, &may) || left-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(c, &one);
        (void)sched_setaffinity(0, sizeof(one), &one);
        return;
    }
}

/* Returns 0, or 1 when a sum is wrong. */
static int measure(int rank, int world, int calls, uint64_t bytes, uint64_t *ns)
{
    int n = (int)(bytes / sizeof(float)), wrong = 0;
    float *in = malloc(bytes), *out = malloc(bytes);

    if (in == NULL || out == NULL)
        return 1;
    for (int i = 0; i < n; i++)
        in[i] = (float)(rank + 1);
    for (int i = 0; i < calls / 4 + 2; i++)
        (void)MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < calls; i++) {
        uint64_t begin = now_ns();
        (void)MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        ns[i] = now_ns() - begin;
    }
    for (int i = 0; i < n; i++)
        wrong |= out[i] != (float)(world * (world + 1) / 2);
    qsort(ns, (size_t)calls, sizeof(*ns), by_ns);
    if (rank == 0)
        (void)printf("%llu %.3f %.3f\n", (unsigned long long)bytes, (double)ns[calls / 2] / 1e3,
                     (double)ns[(long)calls * 99 / 100] / 1e3);
    free(in);
    free(out);
    return wrong;
}

int main(int argc, char **argv)
{
    int rank, world, calls, wrong = 0;

    (void)MPI_Init(&argc, &argv);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &world);
    bind_core(rank);
    calls = argc > 2 ? atoi(argv[1]) : 0;
    uint64_t *ns = calls > 0 ? calloc((size_t)calls, sizeof(*ns)) : NULL;
    if (ns == NULL) {
        (void)fprintf(stderr, "usage: mpi_allreduce CALLS BYTES...\n");
        (void)MPI_Abort(MPI_COMM_WORLD, 2);
        return 2;
    }
    for (int i = 2; i < argc; i++)
        wrong |= measure(rank, world, calls, strtoull(argv[i], NULL, 10), ns);
    free(ns);
    (void)MPI_Finalize();
    if (wrong)
        (void)fprintf(stderr, "rank %d: a sum was wrong\n", rank);
    return wrong;
}
