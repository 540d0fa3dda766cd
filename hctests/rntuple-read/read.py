"""Read a TTree or an RNTuple entry by entry, the loop of every event-by-event analysis."""

import treehammer_kit

treehammer_kit.run(
    """
    void read(treehammer::Pass &pass)
    {
       for (Long64_t entry : pass.entries)
          pass.Add(pass.tree->GetEntry(entry));
    }
    """,
    ntuple="""
    void read(treehammer::NTuplePass &pass)
    {
       for (Long64_t entry : pass.entries)
          pass.Load(entry);
    }
    """,
)
