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
os.environ["PLANTED_BLOCKS"] = str(variant["blocks"] if variant["twin"] == "b" else 0.0)

work = Path(__file__).with_name("planted_work.hpp").read_text(encoding="utf-8")
treehammer_kit.run(
    work
    + """
    #include <ctime>

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
