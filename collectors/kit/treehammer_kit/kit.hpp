// The timed read of one file: phases, ROOT's and the kernel's counters, read latencies.
//
// A payload defines `void NAME(treehammer::Pass &pass)`; the Python side steps a Reader through its
// phases.  Each phase is timed in here, so neither Python nor the JIT is ever inside a timed phase.
#ifndef TREEHAMMER_KIT
#define TREEHAMMER_KIT
#pragma cling optimize(2)

#include "accounts.hpp"
#include "events.hpp"

#include <TBranch.h>
#include <TClass.h>
#include <TEntryList.h>
#include <TFile.h>
#include <TKey.h>
#include <TLeaf.h>
#include <TPluginManager.h>
#include <TROOT.h>
#include <TTree.h>
#include <TTreeCache.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace treehammer {

/// A read that failed; everything else that a loop throws is the payload's own failure.
struct ReadError : std::runtime_error {
   using std::runtime_error::runtime_error;
};

/// Copy a piece of a file, as its door delivers it, to an address of Python's; false when it fails.
inline bool CopyOut(TFile *file, Long64_t at, Int_t length, std::uintptr_t target)
{
   return !file->ReadBuffer(reinterpret_cast<char *>(target), at, length);
}

// --- What the payload's loop is given ------------------------------------------------------------

/// One file of one pass.
class Pass {
public:
   TFile *file = nullptr;
   TTree *tree = nullptr;
   Entries entries;                          // what to read of this file
   std::map<std::string, std::string> settings; // the test's [settings]; lists and tables as JSON
   std::map<std::string, double> reported;
   Long64_t events = 0, bytes = 0;

   /// Count one event, given what GetEntry returned; -1 ends the execution as a failed read.
   void Add(Long64_t unzipped_bytes)
   {
      if (unzipped_bytes < 0)
         throw ReadError("GetEntry returned " + std::to_string(unzipped_bytes) + " for entry " +
                         std::to_string(tree->GetReadEntry()));
      bytes += unzipped_bytes;
      ++events;
   }
   /// Report a counter that test.toml declares; values of the files of a pass are summed.
   void Report(const std::string &name, double value) { reported[name] += value; }
   const std::string &Setting(const std::string &name) const
   {
      const auto found = settings.find(name);
      if (found == settings.end())
         throw std::runtime_error("test.toml has no [settings] key '" + name + "'");
      return found->second;
   }
};

using Loop = void (*)(Pass &);

/// The loop that warms up.
inline void ReadAll(Pass &pass)
{
   for (Long64_t entry : pass.entries)
      pass.Add(pass.tree->GetEntry(entry));
}

/// The loop that is run: the payload's own, once it is compiled.
inline Loop &TheLoop()
{
   static Loop loop = ReadAll;
   return loop;
}

/// A small file with the usual kinds of branches.
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

struct BranchInfo {
   std::string name;
   Long64_t zip_bytes = 0;
   std::vector<std::string> counters; // top-level branches that hold the sizes of its arrays
};

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
      found.push_back({branch->GetName(), branch->GetZipBytes("*"), {}});
      CollectCounters(branch, found.back().counters);
   }
   return found;
}

/// As SetBranchStatus(name, true), but exact: names are never taken for patterns.
inline void Activate(TBranch *branch)
{
   branch->ResetBit(kDoNotProcess);
   for (auto *child : *branch->GetListOfBranches())
      Activate(static_cast<TBranch *>(child));
}

// --- Reading one file ----------------------------------------------------------------------------

/// One file, read once: Open, GetTree, (Python chooses,) Prepare, Run, Close, in this order.
/// A step that fails returns false and leaves failure_class, kind and message.
class Reader {
   std::unique_ptr<TFile> fFile;
   std::unique_ptr<ReadEvents> fEvents;
   std::unique_ptr<TEntryList> fEntryList;
   std::vector<Long64_t> fEntries;

   bool Fail(const char *failure, const char *reason, std::string text)
   {
      failure_class = failure;
      kind = reason;
      message = std::move(text);
      if (!FirstError().empty())
         message += " (" + FirstError() + ")";
      return false;
   }

   /// What ROOT calls an error is one, even where it goes on: GetEntry can be content with a basket
   /// whose values make no sense.
   bool WithoutErrors(const char *failure, const char *doing)
   {
      return FirstError().empty() ||
             Fail(failure, "error", std::string("ROOT met an error while ") + doing + " " + fFile->GetName());
   }

public:
   Pass current; // what the loop is given (Python cannot say 'pass')
   Clock open, get_tree, prepare, loop, close;
   std::string failure_class, kind, message, file_class;
   double first_byte_s = -1;
   Long64_t file_size = 0, entries_total = 0;
   Long64_t bytes_read = 0, bytes_read_extra = 0, read_calls = 0;
   Long64_t cache_size = 0, cache_bytes_read = 0, cache_read_calls = 0;
   Long64_t cache_missed_bytes = 0, cache_missed_calls = 0;
   double cache_efficiency = 0, cache_efficiency_rel = 0;
   bool cached = false, prefetching = false;
   Long64_t perf_bytes_read = 0, perf_read_calls = 0;
   double perf_disk_s = 0, perf_unzip_s = 0, perf_real_s = 0, perf_cpu_s = 0, longest_read_s = 0;
   std::vector<Long64_t> latencies;
   Long64_t kernel_read_chars = -1, kernel_read_bytes = -1, kernel_read_calls = -1;
   double run_queue_s = -1;

   /// Load the library that serves this URL, so that the timed opening does not.
   static void LoadPlugin(const std::string &url)
   {
      if (auto *handler = gROOT->GetPluginManager()->FindHandler("TFile", url.c_str()))
         handler->LoadPlugin();
   }

   /// Whether this ROOT has a class that reads such a URL, as far as it says so itself.
   static bool Supports(const std::string &url)
   {
      if (url.find("://") == std::string::npos || url.rfind("file:", 0) == 0)
         return true;
      auto *handler = gROOT->GetPluginManager()->FindHandler("TFile", url.c_str());
      // The web's class of some builds of 6.40 is there, but its handler names no constructor of it.
      return handler && handler->LoadPlugin() == 0 && FirstError().find("TPluginHandler") != 0;
   }

   bool Open(const std::string &url)
   {
      WatchErrors();
      FirstRead first;
      gPerfStats = &first;
      const Clock start = Clock::Now();
      fFile.reset(TFile::Open(url.c_str(), "READ"));
      open = Clock::Now() - start;
      gPerfStats = nullptr;
      const bool recovered = fFile && fFile->TestBit(TFile::kRecovered);
      if (recovered || FirstError().find("truncated") != std::string::npos)
         return Fail("open", "truncated", url + " is truncated or was never closed");
      if ((!fFile || fFile->IsZombie()) && !Supports(url))
         return Fail("software setup", "not-supported",
                     std::string("ROOT ") + gROOT->GetVersion() + " of this build has no class that opens " + url);
      if (!fFile || fFile->IsZombie())
         return Fail("open", "file", "cannot open " + url);
      first_byte_s = first.end > 0 ? first.end - start.wall : -1;
      file_class = fFile->ClassName();
      file_size = fFile->GetSize();
      current.file = fFile.get();
      return WithoutErrors("open", "opening");
   }

   bool GetTree(const std::string &name)
   {
      const Clock start = Clock::Now();
      current.tree = fFile->Get<TTree>(name.c_str());
      get_tree = Clock::Now() - start;
      if (!current.tree)
         return Fail("open", "tree", "no tree '" + name + "'");
      entries_total = current.tree->GetEntries();
      return WithoutErrors("open", "getting the tree of");
   }

   /// Names and classes of what lies at the top of the file, for a message.
   std::vector<std::pair<std::string, std::string>> Contents() const
   {
      std::vector<std::pair<std::string, std::string>> found;
      for (auto *object : *fFile->GetListOfKeys()) {
         auto *key = static_cast<TKey *>(object);
         found.emplace_back(key->GetName(), key->GetClassName());
      }
      return found;
   }

   /// Choose a fraction of the events; untimed.
   void ChooseEvents(double fraction, uint64_t seed)
   {
      fEntries.clear();
      fEntryList.reset();
      current.entries = Entries(entries_total);
      if (fraction >= 1)
         return;
      fEntries = SampleEntries(entries_total, fraction, seed);
      current.entries = Entries(fEntries);
      // The cache leaves out the baskets that hold none of a list's entries.
      fEntryList = std::make_unique<TEntryList>(current.tree);
      fEntryList->SetDirectory(nullptr);
      for (auto entry : fEntries)
         fEntryList->Enter(entry);
   }

   /// The order of these calls matters: TTreePerfStats created after AddBranchToCache costs 60 % CPU.
   bool Prepare(Long64_t cache_bytes, bool all_branches, const std::vector<int> &selected)
   {
      auto *tree = current.tree;
      auto *branches = tree->GetListOfBranches();
      const Clock start = Clock::Now();
      fEvents = std::make_unique<ReadEvents>(tree);
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
                                  fEntries.empty() ? entries_total : fEntries.back() + 1);
         if (all_branches)
            tree->AddBranchToCache("*", true);
         else
            for (int index : selected)
               tree->AddBranchToCache(static_cast<TBranch *>(branches->UncheckedAt(index)), true);
         tree->StopCacheLearningPhase();
      }
      prepare = Clock::Now() - start;
      cache_size = tree->GetCacheSize();
      return WithoutErrors("open", "preparing to read");
   }

   bool Run()
   {
      auto *file = fFile.get();
      const Long64_t bytes = file->GetBytesRead(), extra = file->GetBytesReadExtra();
      const Long64_t calls = file->GetReadCalls();
      std::string problem;
      bool read_failed = false;
      Kernel before, after;
      before.TakeIo();
      before.TakeQueue();
      const Clock start = Clock::Now();
      try {
         TheLoop()(current);
      } catch (const ReadError &error) {
         problem = error.what();
         read_failed = true;
      } catch (const std::exception &error) {
         problem = error.what();
      }
      loop = Clock::Now() - start;
      after.TakeQueue();
      after.TakeIo();
      if (read_failed)
         return Fail("read", "entry", problem);
      if (!problem.empty())
         return Fail(FirstError().empty() ? "payload" : "read", "exception", problem);
      if (!WithoutErrors("read", "reading"))
         return false;
      bytes_read = file->GetBytesRead() - bytes;
      bytes_read_extra = file->GetBytesReadExtra() - extra;
      read_calls = file->GetReadCalls() - calls;
      AccountKernel(before, after);
      AccountCache();
      AccountEvents();
      return true;
   }

   void AccountKernel(const Kernel &before, const Kernel &after)
   {
      if (before.run_queue_s >= 0 && after.run_queue_s >= 0)
         run_queue_s = after.run_queue_s - before.run_queue_s;
      if (before.read_chars < 0 || after.read_chars < 0)
         return;
      // Less what the accounts themselves read: the first of I/O and both of the run queue.
      const Long64_t own = before.io_cost + before.queue_cost + after.queue_cost;
      kernel_read_chars = after.read_chars - before.read_chars - own;
      kernel_read_calls = after.read_calls - before.read_calls - 3;
      kernel_read_bytes = after.read_bytes - before.read_bytes;
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
      fEvents->Finish(); // before Close: it looks at the file
      perf_bytes_read = fEvents->bytes;
      perf_read_calls = fEvents->calls;
      perf_disk_s = fEvents->GetDiskTime();
      perf_unzip_s = fEvents->GetUnzipTime();
      perf_real_s = fEvents->GetRealTime();
      perf_cpu_s = fEvents->GetCpuTime();
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
