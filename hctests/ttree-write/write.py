"""Copy all selected events into a new TTree in memory."""

import treehammer_kit

treehammer_kit.run(
    """
    #include <TMemFile.h>
    #include <memory>

    void read(treehammer::Pass &pass)
    {
       TMemFile output("copy.root", "RECREATE", "", pass.file->GetCompressionSettings());
       TTree *copy = pass.tree->CloneTree(0);
       for (Long64_t entry : pass.entries) {
          pass.Add(pass.tree->GetEntry(entry));
          copy->Fill();
       }
       output.Write();
       pass.Report("written_bytes", copy->GetZipBytes());
    }
    """,
    turns=False,
)
