"""Reads a TTree or an RNTuple entry by entry: the loop that every event-by-event analysis contains."""

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
