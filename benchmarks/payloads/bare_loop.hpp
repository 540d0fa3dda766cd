#include <TFile.h>
#include <TTree.h>

#include <memory>
#include <string>

#pragma cling optimize(2)
namespace bare {
// The kit's order of calls without its instruments: nothing but what reads the tree.
class Reader {
   std::unique_ptr<TFile> file;
   TTree *tree = nullptr;

public:
   Long64_t bytes = 0;

   void Prepare(const std::string &url, const std::string &name, Long64_t cache)
   {
      file.reset(TFile::Open(url.c_str()));
      tree = file->Get<TTree>(name.c_str());
      tree->SetCacheSize(cache);
      if (cache > 0) {
         tree->SetCacheEntryRange(0, tree->GetEntries());
         tree->AddBranchToCache("*", true);
         tree->StopCacheLearningPhase();
      }
   }
   void Run(Long64_t end)
   {
      for (Long64_t entry = 0; entry < end; ++entry)
         bytes += tree->GetEntry(entry);
   }
   void Close() { file.reset(); }
};
}
