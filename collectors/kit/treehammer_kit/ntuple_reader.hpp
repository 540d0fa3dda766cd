// Timed read of one file's RNTuple: phases and selections as for a TTree, and the reader's own
// counters.
#ifndef TREEHAMMER_NTUPLE_READER
#define TREEHAMMER_NTUPLE_READER
#define TREEHAMMER_READS_NTUPLE // for a macro that reads both formats

#include "file_reader.hpp"
#include "ntuple.hpp"
#include "ntuple_distances.hpp"

#include <ROOT/RNTupleMetrics.hxx>
#include <ROOT/RNTupleModel.hxx>
#include <ROOT/RNTupleReadOptions.hxx>
#include <ROOT/RNTupleWriter.hxx>

namespace treehammer {

/// One file of one pass over an RNTuple.
class NTuplePass : public FilePass {
public:
   ROOT::RNTupleReader *reader = nullptr;
   std::vector<ROOT::RNTupleView<void>> views; // of the selected fields

   NTuplePass() {} // not an aggregate, whose members Python's constructor could not name

   /// Read the selected fields of one entry and count it; exceptions of the reader are failed reads.
   void Load(Long64_t entry)
   {
      try {
         for (auto &view : views)
            view(entry);
      } catch (const std::exception &error) {
         throw ReadError("entry " + std::to_string(entry) + ": " + error.what());
      }
      ++events;
   }
};

using NTupleLoop = void (*)(NTuplePass &);

/// The warm-up loop.
inline void LoadAll(NTuplePass &pass)
{
   for (Long64_t entry : pass.entries)
      pass.Load(entry);
}

/// The timed loop: the payload's, once it is compiled.
inline NTupleLoop &TheNTupleLoop()
{
   static NTupleLoop loop = LoadAll;
   return loop;
}

/// Write a small file with the usual kinds of fields.
inline void WriteWarmUpNTuple(const std::string &path, const std::string &name)
{
   auto model = ROOT::RNTupleModel::Create();
   *model->MakeField<std::int32_t>("n") = 3;
   *model->MakeField<float>("scalar") = 1;
   *model->MakeField<std::vector<float>>("floats") = {1, 1, 1, 1};
   *model->MakeField<ROOT::RVec<float>>("jagged") = {1, 2, 3};
   *model->MakeField<std::vector<std::int32_t>>("ints") = {1, 1, 1, 1};
   *model->MakeField<std::string>("text") = "warm";
   auto writer = ROOT::RNTupleWriter::Recreate(std::move(model), name, path);
   for (int entry = 0; entry < 200; ++entry)
      writer->Fill();
}

/// One file, read once: Open, GetTree, (selection in Python,) Prepare, Run, Close, in this order.
class NTupleReader : public FileReader {
   ReadDistances fDistances; // outlives the reader
   bool fHasDistances = false;
   std::unique_ptr<ROOT::RNTupleReader> fReader;
   std::vector<Long64_t> fEntries;
   Entries fAll; // of a loop of turns

   /// A counter of the reader's page source; -1 where this ROOT lacks it.
   Long64_t Counter(const char *name) const
   {
      const auto *counter = fReader->GetMetrics().GetCounter(std::string("RNTupleReader.RPageSourceFile.") + name);
      return counter ? counter->GetValueAsInt() : -1;
   }

   std::map<std::string, Long64_t> Counters() const
   {
      std::map<std::string, Long64_t> found;
      for (const char *name : {"nReadV", "nRead", "szReadPayload", "szReadOverhead", "szUnzip", "nClusterLoaded",
                               "nPageRead", "nPageUnsealed", "timeWallRead", "timeCpuRead", "timeWallUnzip",
                               "timeCpuUnzip"})
         found[name] = Counter(name);
      return found;
   }

public:
   NTuplePass current; // the loop's argument ('pass' is a keyword of Python)
   std::map<std::string, Long64_t> counters; // of the loop, by the reader's names; -1 is unknown
   bool cluster_cache = false;

   bool Open(const std::string &url) { return OpenFile(url, current); }
   void SetSetting(const std::string &name, const std::string &value) { current.settings[name] = value; }

   /// Read anchor, header, footer and page lists; later, as many clusters at once (0: ROOT's choice).
   bool GetTree(const std::string &name, bool with_cluster_cache, unsigned clusters = 0)
   {
      using Cache = ROOT::RNTupleReadOptions::EClusterCache;
      cluster_cache = with_cluster_cache;
      ROOT::RNTupleReadOptions options;
      options.SetClusterCache(cluster_cache ? Cache::kOn : Cache::kOff);
      options.SetEnableMetrics(true);
      if (clusters)
         ROOT::Internal::RNTupleReadOptionsManip::SetClusterBunchSize(options, clusters);
      try {
         const Clock start = Clock::Now();
         fReader = OpenNTuple(fFile.get(), name, options);
         get_tree = Clock::Now() - start;
         fHasDistances = CountDistances(*fReader, fDistances);
      } catch (const MissingObject &error) {
         return Fail("open", "missing", error.what());
      } catch (const std::exception &error) {
         return Fail("open", "tree", std::string(fFile->GetName()) + ": " + ReaderMessage(error));
      }
      entries_total = fReader->GetNEntries();
      current.reader = fReader.get();
      return WithoutErrors("open", "getting the RNTuple of");
   }

   /// Whether RDataFrame finds the RNTuple of this path; untimed.
   bool IsFoundByDataFrame(const std::string &path) const { return IsFoundByGet(*fFile, path, IsNTuple); }

   /// An RNTuple has no friends.
   FollowedFriends FollowFriends() const { return {}; }

   /// List the fields that represent branches; untimed.
   std::vector<NTupleField> Survey() const { return NTupleFields(fReader->GetDescriptor()); }

   /// Sum the compressed bytes of some fields' pages, each page once; untimed.
   Long64_t ZipBytes(const std::vector<int> &selected) const
   {
      return PageBytes(fReader->GetDescriptor(), Survey(), selected);
   }

   /// Entries of each cluster; untimed.
   std::vector<Long64_t> ClusterEntries() const
   {
      std::map<Long64_t, Long64_t> found; // by the first entry
      for (const auto &cluster : fReader->GetDescriptor().GetClusterIterable())
         found[cluster.GetFirstEntryIndex()] = cluster.GetNEntries();
      std::vector<Long64_t> entries;
      for (const auto &item : found)
         entries.push_back(item.second);
      return entries;
   }

   /// Choose a fraction of the first `total` events; untimed.
   void ChooseEvents(Long64_t total, double fraction, uint64_t seed)
   {
      fEntries.clear();
      current.entries = Entries(total);
      if (fraction >= 1)
         return;
      fEntries = SampleEntries(total, fraction, seed);
      current.entries = Entries(fEntries);
   }

   /// Count the chosen events.
   Long64_t CountEvents() const { return current.entries.size(); }

   /// Connect the selected fields; only connected fields are read.
   bool Prepare(const std::vector<int> &selected)
   {
      const auto fields = Survey();
      std::string name;
      try {
         const Clock start = Clock::Now();
         current.views.reserve(selected.size());
         for (int index : selected) {
            name = fields[index].name;
            current.views.push_back(fReader->GetView<void>(fields[index].id));
         }
         prepare = Clock::Now() - start;
      } catch (const std::exception &error) {
         return Fail("open", "field",
                     std::string(fFile->GetName()) + ": field '" + name + "': " + ReaderMessage(error) +
                        ". Read branches = \"readable\", exclude the field, or load its library (load in test.toml)");
      }
      return WithoutErrors("open", "preparing to read");
   }

   bool Run()
   {
      fDistances.Clear();
      counters = Counters();
      if (!Measure([this] { TheNTupleLoop()(current); }))
         return false;
      FinishLoop();
      return true;
   }

   /// Start a loop of turns; FinishTurns ends it.
   void StartTurns()
   {
      FileReader::StartTurns();
      fAll = current.entries;
      fDistances.Clear();
      counters = Counters();
   }

   bool RunTurn(Long64_t first, Long64_t last)
   {
      current.entries = fAll.Slice(first, last);
      return MeasureTurn([this] { TheNTupleLoop()(current); }, current);
   }

   void FinishTurns() { FinishLoop(); }

   /// Subtract the counters at the start of the loop from those at its end.
   void FinishLoop()
   {
      for (auto &item : counters) {
         const Long64_t end = Counter(item.first.c_str());
         item.second = end < 0 ? -1 : end - item.second;
      }
      if (fHasDistances)
         AccountDistances(fDistances);
   }

   void Close()
   {
      CollectOtherFiles({fFile->GetName()});
      const Clock start = Clock::Now();
      current.views.clear();
      fReader.reset();
      fFile->Close();
      fFile.reset();
      close = Clock::Now() - start;
      current.file = nullptr;
      current.reader = nullptr;
   }
};

} // namespace treehammer
#endif
