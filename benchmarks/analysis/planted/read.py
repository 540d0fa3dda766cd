"""Read a TTree entry by entry; side b also decompresses blocks, a slowdown of known size.

The work is like reading itself, of which decompression is the largest part, so that a busy machine
slows down both.  It does not follow the clock: each event causes the same work, and the payload
measures its size with clocks of its own.
"""

import json
import os
from pathlib import Path

import treehammer_kit

job = json.loads(Path(os.environ["TREEHAMMER_JOB"]).read_text(encoding="utf-8"))
variant = job["execution"]["variant"]
os.environ["PLANTED_BLOCKS"] = str(variant["blocks"] if variant["twin"] == "b" else 0)

treehammer_kit.run(
    """
    #include <RZip.h>

    #include <cstdlib>
    #include <ctime>
    #include <random>
    #include <stdexcept>
    #include <vector>

    /// A block of floats with few significant bits, as experiments store them, and its compression.
    class PlantedWork {
       static constexpr int fSize = 4096;
       std::vector<unsigned char> fZipped, fPlain;
       double fPerEvent = std::atof(std::getenv("PLANTED_BLOCKS")), fDebt = 0;

    public:
       PlantedWork() : fZipped(2 * fSize), fPlain(fSize)
       {
          std::mt19937 generator(1);
          std::normal_distribution<float> normal;
          auto *values = reinterpret_cast<unsigned int *>(fPlain.data());
          for (unsigned int i = 0; i < fSize / sizeof(float); ++i) {
             reinterpret_cast<float &>(values[i]) = normal(generator);
             values[i] &= 0xfffff000;
          }
          int from = fSize, room = fZipped.size(), length = 0;
          R__zipMultipleAlgorithm(1, &from, reinterpret_cast<char *>(fPlain.data()), &room,
                                  reinterpret_cast<char *>(fZipped.data()), &length,
                                  ROOT::RCompressionSetting::EAlgorithm::kZLIB);
          fZipped.resize(length);
       }

       void Run(Long64_t events)
       {
          for (fDebt += fPerEvent * events; fDebt >= 1; --fDebt) {
             int from = fZipped.size(), room = fSize, length = 0;
             R__unzip(&from, fZipped.data(), &room, fPlain.data(), &length);
             if (length != fSize)
                throw std::runtime_error("the planted block cannot be decompressed");
          }
       }
    };

    double ThreadSeconds()
    {
       timespec now;
       clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
       return now.tv_sec + 1e-9 * now.tv_nsec;
    }

    void read(treehammer::Pass &pass)
    {
       static PlantedWork work;
       const double start = ThreadSeconds();
       const Long64_t before = pass.events;
       for (Long64_t entry : pass.entries)
          pass.Add(pass.tree->GetEntry(entry));
       const double between = ThreadSeconds();
       work.Run(pass.events - before);
       pass.Report("reading_cpu_s", between - start);
       pass.Report("planted_cpu_s", ThreadSeconds() - between);
    }
    """
)
