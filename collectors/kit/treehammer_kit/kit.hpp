// Timed read of one file's TTree.
//
// A payload defines `void NAME(treehammer::Pass &pass)`; the Python side drives a Reader through its
// phases.  Each phase is timed here, so that no timed phase contains Python or the JIT.
#ifndef TREEHAMMER_KIT
#define TREEHAMMER_KIT
#pragma cling optimize(2)

#include "crash_frames.hpp"
#include "file_objects.hpp"
#include "file_reader.hpp"

#include <TBranch.h>
#include <TClass.h>
#include <TEntryList.h>
#include <TLeaf.h>
#include <TTree.h>
#include <TTreeCache.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace treehammer {

// --- Argument of the payload's loop ----------------------------------------------------------------

/// One file of one pass over a TTree.
class Pass : public FilePass {
public:
   TTree *tree = nullptr;

   Pass() {} // not an aggregate, whose members Python's constructor could not name

   /// Count one event, given the return value of GetEntry; -1 ends the execution as a failed read.
   void Add(Long64_t unzipped_bytes)
   {
      if (unzipped_bytes < 0)
         throw ReadError("GetEntry returned " + std::to_string(unzipped_bytes) + " for entry " +
                         std::to_string(tree->GetReadEntry()));
      bytes += unzipped_bytes;
      ++events;
   }
};

using Loop = void (*)(Pass &);

/// The warm-up loop.
inline void ReadAll(Pass &pass)
{
   for (Long64_t entry : pass.entries)
      pass.Add(pass.tree->GetEntry(entry));
}

/// The timed loop: the payload's, once it is compiled.
inline Loop &TheLoop()
{
   static Loop loop = ReadAll;
   return loop;
}

/// Write a small file with the usual kinds of branches.
inline void WriteWarmUpFile(const std::string &path, const std::string &tree_name)
{
   TFile file(path.c_str(), "RECREATE");
   auto *tree = new TTree(tree_name.c_str(), "warm-up"); // owned by the file
   int n = 3;
   float scalar = 1, array[4] = {1, 2, 3, 4};
   std::vector<float> floats(4, 1);
   std::vector<int> ints(4, 1);
   std::string text = "warm";
   tree->Branch("n", &n, "n/I");
   tree->Branch("scalar", &scalar, "scalar/F");
   tree->Branch("jagged", array, "jagged[n]/F");
   tree->Branch("floats", &floats);
   tree->Branch("ints", &ints);
   tree->Branch("text", &text);
   tree->SetAutoFlush(50);
   for (int entry = 0; entry < 200; ++entry)
      tree->Fill();
   file.Write();
}

// --- Branches ------------------------------------------------------------------------------------

inline void CollectCounters(TBranch *branch, std::vector<std::string> &names)
{
   for (auto *object : *branch->GetListOfLeaves())
      if (auto *counter = static_cast<TLeaf *>(object)->GetLeafCount()) {
         const std::string name = counter->GetBranch()->GetMother()->GetName();
         if (std::find(names.begin(), names.end(), name) == names.end())
            names.push_back(name);
      }
   for (auto *child : *branch->GetListOfBranches())
      CollectCounters(static_cast<TBranch *>(child), names);
}

inline std::vector<BranchInfo> Survey(TTree *tree)
{
   std::vector<BranchInfo> found;
   for (auto *object : *tree->GetListOfBranches()) {
      auto *branch = static_cast<TBranch *>(object);
      found.push_back({branch->GetName(), branch->GetZipBytes("*"), {}, {}});
      CollectCounters(branch, found.back().counters);
      CollectTypes(*branch, "", found.back().types);
   }
   return found;
}

/// Like SetBranchStatus(name, true), but names are never interpreted as patterns.
inline void Activate(TBranch *branch)
{
   branch->ResetBit(kDoNotProcess);
   for (auto *child : *branch->GetListOfBranches())
      Activate(static_cast<TBranch *>(child));
}

// --- Reading one file ----------------------------------------------------------------------------

/// One file, read once: Open, GetTree, (selection in Python,) Prepare, Run, Close, in this order.
class Reader : public FileReader {
   std::unique_ptr<ReadEvents> fEvents;
   std::unique_ptr<TEntryList> fEntryList;
   std::vector<Long64_t> fEntries;
   Entries fAll; // of a loop of turns

public:
   Pass current; // the loop's argument ('pass' is a keyword of Python)
   Long64_t bytes_read = 0, bytes_read_extra = 0, read_calls = 0;
   Long64_t cache_size = 0, cache_bytes_read = 0, cache_read_calls = 0;
   Long64_t cache_missed_bytes = 0, cache_missed_calls = 0;
   double cache_efficiency = 0, cache_efficiency_rel = 0;
   bool cached = false, prefetching = false;
   Long64_t vector_calls = 0, vector_blocks = 0;
   Long64_t perfstats_bytes_read = 0, perfstats_read_calls = 0, baskets_read = 0;
   double perfstats_read_s = 0, perfstats_unzip_s = 0, perfstats_wall_s = 0, perfstats_cpu_s = 0, longest_read_s = 0;
   std::vector<Long64_t> latencies;
   FriendTrees friends; // detached from the tree, so that they are not read

   bool Open(const std::string &url) { return OpenFile(url, current); }
   void SetSetting(const std::string &name, const std::string &value) { current.settings[name] = value; }

   bool GetTree(const std::string &name)
   {
      const Clock start = Clock::Now();
      try {
         auto *key = FindObject(*fFile, name, IsTree);
         current.tree = key ? ReadTree(*key, friends) : nullptr;
      } catch (const std::exception &error) {
         return Fail("open", "name", std::string(fFile->GetName()) + ": " + error.what());
      }
      get_tree = Clock::Now() - start;
      if (!current.tree)
         return Fail("open", "tree", "no tree '" + name + "'");
      const auto foreign = DescribeForeignBranches(*current.tree);
      if (!foreign.empty())
         return Fail("payload", "files", std::string(fFile->GetName()) + ": " + foreign);
      entries_total = current.tree->GetEntries();
      return WithoutErrors("open", "getting the tree of");
   }

   /// Whether RDataFrame finds the tree of this path; untimed.
   bool IsFoundByDataFrame(const std::string &path) const { return IsFoundByGet(*fFile, path, IsTree); }

   /// List the friend trees that a data frame follows; untimed.
   FollowedFriends FollowFriends() const
   {
      FollowedFriends followed;
      std::set<std::string> visited;
      treehammer::FollowFriends(*fFile, friends, visited, followed);
      return followed;
   }

   /// List the branches; untimed.
   std::vector<BranchInfo> Survey() const { return treehammer::Survey(current.tree); }

   /// List the branches with another number of entries than the tree; untimed.
   BranchLengths OtherLengths() const { return FindOtherLengths(*current.tree); }

   /// Entries of each cluster; untimed.
   std::vector<Long64_t> ClusterEntries() const
   {
      std::vector<Long64_t> found;
      auto cluster = current.tree->GetClusterIterator(0);
      for (Long64_t first = cluster(); first < entries_total; first = cluster())
         found.push_back(std::min(cluster.GetNextEntry(), entries_total) - first);
      return found;
   }

   /// Choose a fraction of the first `total` events; untimed.
   void ChooseEvents(Long64_t total, double fraction, uint64_t seed)
   {
      fEntries.clear();
      fEntryList.reset();
      current.entries = Entries(total);
      if (fraction >= 1)
         return;
      fEntries = SampleEntries(total, fraction, seed);
      current.entries = Entries(fEntries);
      // With an entry list the cache skips baskets without selected entries.
      fEntryList = std::make_unique<TEntryList>(current.tree);
      fEntryList->SetDirectory(nullptr);
      for (auto entry : fEntries)
         fEntryList->Enter(entry);
   }

   /// Count the chosen events.
   Long64_t CountEvents() const { return current.entries.size(); }

   /// The order of these calls matters: TTreePerfStats created after AddBranchToCache costs 60 % CPU.
   bool Prepare(Long64_t cache_bytes, bool all_branches, const std::vector<int> &selected)
   {
      auto *tree = current.tree;
      auto *branches = tree->GetListOfBranches();
      const Clock start = Clock::Now();
      fEvents = std::make_unique<ReadEvents>(tree);
      fEvents->is_remote = file_class == "TNetXNGFile";
      if (tree->SetCacheSize(cache_bytes) < 0) // 0 is explicit: an automatic cache is ROOT's default
         return Fail("open", "cache", "cannot create a TTreeCache of " + std::to_string(cache_bytes) + " bytes");
      if (!all_branches) {
         tree->SetBranchStatus("*", false);
         for (int index : selected)
            Activate(static_cast<TBranch *>(branches->UncheckedAt(index)));
      }
      if (fEntryList)
         tree->SetEntryList(fEntryList.get());
      if (cache_bytes > 0 && entries_total > 0) {
         // Without the range, partial reads fetch 20 % too much.
         tree->SetCacheEntryRange(fEntries.empty() ? 0 : fEntries.front(),
                                  fEntries.empty() ? current.entries.size() : fEntries.back() + 1);
         if (all_branches)
            tree->AddBranchToCache("*", true);
         else
            for (int index : selected)
               tree->AddBranchToCache(static_cast<TBranch *>(branches->UncheckedAt(index)), true);
         tree->StopCacheLearningPhase();
      }
      prepare = Clock::Now() - start;
      cache_size = tree->GetCacheSize();
      fEvents->cache = fFile->GetCacheRead(tree);
      return WithoutErrors("open", "preparing to read");
   }

   bool Run()
   {
      StartLoop();
      if (!Measure([this] { TheLoop()(current); }))
         return false;
      FinishLoop();
      return true;
   }

   /// Start a loop of turns; FinishTurns ends it.
   void StartTurns()
   {
      FileReader::StartTurns();
      fAll = current.entries;
      StartLoop();
   }

   bool RunTurn(Long64_t first, Long64_t last)
   {
      current.entries = fAll.Slice(first, last);
      return MeasureTurn([this] { TheLoop()(current); }, current);
   }

   void FinishTurns()
   {
      FinishLoop();
      perfstats_wall_s = -1; // includes the other process' turns
   }

   void StartLoop()
   {
      bytes_read = -fFile->GetBytesRead();
      bytes_read_extra = -fFile->GetBytesReadExtra();
      read_calls = -fFile->GetReadCalls();
   }

   void FinishLoop()
   {
      bytes_read += fFile->GetBytesRead();
      bytes_read_extra += fFile->GetBytesReadExtra();
      read_calls += fFile->GetReadCalls();
      AccountCache();
      AccountEvents();
   }

   void AccountCache()
   {
      auto *cache = dynamic_cast<TTreeCache *>(fFile->GetCacheRead(current.tree));
      if (!cache)
         return;
      cached = true;
      prefetching = cache->IsEnablePrefetching();
      cache_bytes_read = cache->GetBytesRead();
      cache_read_calls = cache->GetReadCalls();
      cache_missed_bytes = cache->GetNoCacheBytesRead();
      cache_missed_calls = cache->GetNoCacheReadCalls();
      cache_efficiency = cache->GetEfficiency();
      cache_efficiency_rel = cache->GetEfficiencyRel();
   }

   void AccountEvents()
   {
      fEvents->Finish(); // before Close: it accesses the file
      perfstats_bytes_read = fEvents->bytes;
      perfstats_read_calls = fEvents->calls;
      baskets_read = fEvents->baskets;
      vector_calls = fEvents->vector_calls;
      vector_blocks = fEvents->vector_blocks;
      // Files of other clients stand elsewhere when they report a read, and so do those that prefetch.
      if (file_class == "TFile" || (fEvents->is_remote && !prefetching))
         AccountDistances(fEvents->distances);
      perfstats_read_s = fEvents->GetDiskTime();
      perfstats_unzip_s = fEvents->GetUnzipTime();
      perfstats_wall_s = fEvents->GetRealTime();
      perfstats_cpu_s = fEvents->GetCpuTime();
      longest_read_s = fEvents->longest_s;
      latencies.assign(fEvents->latencies.begin(), fEvents->latencies.end());
   }

   void Close()
   {
      if (current.tree)
         current.tree->SetPerfStats(nullptr);
      gPerfStats = nullptr;
      if (current.tree)
         current.tree->SetEntryList(nullptr);
      CollectOtherFiles({fFile->GetName()});
      const Clock start = Clock::Now();
      fFile->Close();
      fFile.reset();
      close = Clock::Now() - start;
      current.file = nullptr;
      current.tree = nullptr;
      fEvents.reset();
   }
};

} // namespace treehammer
#endif
