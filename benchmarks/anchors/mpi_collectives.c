// SPDX-License-Identifier: BSD-3-Clause
// The collectives of benchmarks/collectives.cpp by MPI, one process per rank:
//
//   mpirun -n 2 mpi_collectives
//
// Prints the same lines under the same names. Results go to a preallocated
// buffer, so unlike ours the times do not include an allocation.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kSamples = 31, kSizes = 10 };

static const long kBytes[kSizes] = {
    4, 64, 1L << 10, 4L << 10, 16L << 10,
    64L << 10, 256L << 10, 1L << 20, 4L << 20, 16L << 20};

static int ranks;
static float *input, *output;

static void all_reduce(int count) {
  MPI_Allreduce(input, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(int count) {
  MPI_Allgather(
      input, count, MPI_FLOAT, output, count, MPI_FLOAT, MPI_COMM_WORLD);
}

static void reduce_scatter(int count) {
  MPI_Reduce_scatter_block(
      input, output, count / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_to_all(int count) {
  MPI_Alltoall(
      input,
      count / ranks,
      MPI_FLOAT,
      output,
      count / ranks,
      MPI_FLOAT,
      MPI_COMM_WORLD);
}

static void broadcast(int count) {
  MPI_Bcast(input, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void barrier(int count) {
  (void)count;
  MPI_Barrier(MPI_COMM_WORLD);
}

struct Kind {
  const char* name;
  void (*run)(int count);
  int needs_element_per_rank;
};

static const struct Kind kKinds[] = {
    {"all_reduce", all_reduce, 0},
    {"all_gather", all_gather, 0},
    {"reduce_scatter", reduce_scatter, 1},
    {"all_to_all", all_to_all, 1},
    {"broadcast", broadcast, 0},
};

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double quantile(const double* sorted, double q) {
  const double at = q * (kSamples - 1);
  const int low = (int)at;
  const int high = low + 1 < kSamples ? low + 1 : low;
  return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

static double sample(void (*run)(int), int count, long calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (long call = 0; call < calls; ++call) {
    run(count);
  }
  return (MPI_Wtime() - begin) * 1e6 / (double)calls;
}

static void measure(const char* name, void (*run)(int), long bytes) {
  long calls = (20L << 20) / (bytes + 1);
  calls = calls < 2 ? 2 : calls > 2000 ? 2000 : calls;
  double samples[kSamples];
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  sample(run, (int)(bytes / 4), calls); // warm up
  for (int i = 0; i < kSamples; ++i) {
    samples[i] = sample(run, (int)(bytes / 4), calls);
  }
  if (rank == 0) {
    qsort(samples, kSamples, sizeof(double), ascending);
    const double median = quantile(samples, 0.5);
    printf(
        "{\"benchmark\": \"%s/%d/%ld\", \"us\": %.4g, \"spread\": %.3g}\n",
        name,
        ranks,
        bytes,
        median,
        (quantile(samples, 0.75) - quantile(samples, 0.25)) / median);
    fflush(stdout);
  }
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const long most = kBytes[kSizes - 1];
  input = malloc((size_t)most);
  output = malloc((size_t)most * (size_t)ranks);
  if (input == NULL || output == NULL) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  for (long i = 0; i < most / 4; ++i) {
    input[i] = 1;
  }
  measure("barrier", barrier, 0);
  for (int size = 0; size < kSizes; ++size) {
    for (size_t k = 0; k < sizeof(kKinds) / sizeof(kKinds[0]); ++k) {
      if (!kKinds[k].needs_element_per_rank || kBytes[size] >= 4L * ranks) {
        measure(kKinds[k].name, kKinds[k].run, kBytes[size]);
      }
    }
  }
  free(input);
  free(output);
  MPI_Finalize();
  return 0;
}
