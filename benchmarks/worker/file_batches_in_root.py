"""Event loop of RDataFrame over uneven files: which file is read when.  Runs in ROOT's Python.

``make FORMAT FOLDER CLUSTERS EVENTS`` writes files with so many clusters (``8,1,1``) of EVENTS events.
``run FORMAT FOLDER`` reads them with two threads and prints, for each file, the milliseconds of its
first and last event.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import ROOT

THREADS = 2

_WRITE = """
#include <ROOT/RNTupleModel.hxx>
#include <ROOT/RNTupleWriter.hxx>
#include <TFile.h>
#include <TTree.h>

void FillValues(std::vector<float> &values, unsigned &state)
{
   for (auto &value : values) {
      state = state * 1664525u + 1013904223u;
      value = state * 1e-9f;
   }
}

void write_ttree(const char *path, int file, int clusters, int events)
{
   TFile output(path, "RECREATE");
   auto *tree = new TTree("events", ""); // owned by the file
   tree->SetAutoFlush(events);
   std::vector<float> values(50);
   unsigned state = file + 1;
   tree->Branch("file", &file);
   tree->Branch("values", &values);
   for (int entry = 0; entry < events * clusters; ++entry) {
      FillValues(values, state);
      tree->Fill();
   }
   output.Write();
}

void write_rntuple(const char *path, int file, int clusters, int events)
{
   auto model = ROOT::RNTupleModel::Create();
   *model->MakeField<int>("file") = file;
   auto values = model->MakeField<std::vector<float>>("values");
   values->resize(50);
   unsigned state = file + 1;
   auto writer = ROOT::RNTupleWriter::Recreate(std::move(model), "events", path);
   for (int entry = 1; entry <= events * clusters; ++entry) {
      FillValues(*values, state);
      writer->Fill();
      if (entry % events == 0)
         writer->CommitCluster();
   }
}
"""

_READ = """
#include <ROOT/RDataFrame.hxx>
#include <ROOT/RVec.hxx>
#include <time.h>
#include <atomic>

std::atomic<long long> began[64], ended[64];

long long Nanoseconds(clockid_t clock)
{
   timespec t{};
   clock_gettime(clock, &t);
   return 1000000000LL * t.tv_sec + t.tv_nsec;
}

void read_files(const std::vector<std::string> &paths)
{
   for (int file = 0; file < 64; ++file)
      began[file] = ended[file] = 0;
   ROOT::RDataFrame("events", paths).Foreach([](int file, const ROOT::RVec<float> &values) {
      long long unset = 0;
      began[file].compare_exchange_strong(unset, Nanoseconds(CLOCK_MONOTONIC));
      const long long start = Nanoseconds(CLOCK_THREAD_CPUTIME_ID);
      volatile float sum = 0;
      while (Nanoseconds(CLOCK_THREAD_CPUTIME_ID) - start < 50000) // of CPU for each event
         for (float value : values)
            sum = sum + value;
      ended[file] = Nanoseconds(CLOCK_MONOTONIC);
   }, {"file", "values"});
}
"""


def main() -> None:
    """Write or read the files."""
    action, file_format, folder, *layout = sys.argv[1:]
    if action == "make":
        ROOT.gInterpreter.Declare(_WRITE)
        write, events = getattr(ROOT, f"write_{file_format}"), int(layout[1])
        for number, clusters in enumerate(layout[0].split(",")):
            path = str(Path(folder, f"{file_format}-{number}.root"))
            write(path, number, int(clusters), events)
        return
    paths = sorted(map(str, Path(folder).glob(f"{file_format}-?.root")))
    ROOT.EnableImplicitMT(THREADS)
    ROOT.gInterpreter.Declare(_READ)
    for _warm_up in (True, False):
        ROOT.read_files(paths)
    times = [(int(ROOT.began[i]), int(ROOT.ended[i])) for i in range(len(paths))]
    start = min(times)[0]
    print(json.dumps([[(t - start) / 1e6 for t in one] for one in times]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
