// Reads branches one after the other, entry by entry, as TTree::GetEntry does. The kit's header must be
// compiled before.
#ifndef TREEHAMMER_PROBE
#define TREEHAMMER_PROBE

#include "current_read.hpp"

#include <TBranch.h>
#include <TObjArray.h>
#include <TTree.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace treehammer {

/// Read the first entries of top-level branches, and keep the current read at an address. Returns the position of the one that failed, with a message; -1 if all
/// could be read.
inline int
ReadBranches(TTree *tree, const std::vector<int> &positions, Long64_t entries, std::uintptr_t current)
{
   WatchErrors();
   CurrentRead read(current);
   // The second pass finds memory that the first one has damaged.
   for (Long64_t step = 0; step < 2 * entries; ++step) {
      const Long64_t entry = step % entries;
      read.SetStep(step, 2 * entries);
      tree->LoadTree(entry);
      for (int at : positions) {
         read.SetPosition(at);
         auto branch = static_cast<TBranch *>(tree->GetListOfBranches()->At(at));
         if (branch->GetEntry(entry) < 0 || !FirstError().empty()) {
            std::fprintf(stderr, "ReadError: entry %lld of %s cannot be read (%s)\n", entry,
                         branch->GetName(), FirstError().c_str());
            return at;
         }
      }
   }
   return -1;
}

/// Read the first entries of some branches together, as a test does, twice; false, with a message, on
/// failure.  The file is opened for each pass.
inline bool
ReadTogether(const std::string &url, const std::string &name, const std::vector<int> &positions, Long64_t entries,
             std::uintptr_t current)
{
   CurrentRead read(current);
   for (int pass = 0; pass < 2; ++pass) {
      WatchErrors();
      std::unique_ptr<TFile> file(TFile::Open(url.c_str()));
      auto *key = file ? FindObject(*file, name, IsTree) : nullptr;
      auto *tree = key ? key->ReadObject<TTree>() : nullptr;
      if (!tree)
         return false;
      DetachFriends(*tree);
      tree->SetCacheSize(30'000'000);
      tree->SetBranchStatus("*", false);
      for (int at : positions) {
         auto *branch = static_cast<TBranch *>(tree->GetListOfBranches()->At(at));
         Activate(branch);
         tree->AddBranchToCache(branch, true);
      }
      tree->StopCacheLearningPhase();
      for (Long64_t entry = 0; entry < entries; ++entry) {
         read.SetStep(pass * entries + entry, 2 * entries);
         if (tree->GetEntry(entry) < 0 || !FirstError().empty()) {
            std::fprintf(stderr, "ReadError: entry %lld cannot be read with other branches (%s)\n", entry,
                         FirstError().c_str());
            return false;
         }
      }
   }
   return true;
}

} // namespace treehammer

#endif
