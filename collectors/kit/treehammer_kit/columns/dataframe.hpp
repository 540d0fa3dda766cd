// Timed analysis of all files of a dataset with RDataFrame: in one go, also with implicit
// multi-threading, or in turns.
#ifndef TREEHAMMER_DATAFRAME
#define TREEHAMMER_DATAFRAME

#include "../file_reader.hpp"
#include "gated_loop.hpp"

#include <ROOT/RDataFrame.hxx>
#include <ROOT/RError.hxx>
#include <ROOT/RResultPtr.hxx>
#include <RVersion.h>
#include <TH1D.h>
#include <TROOT.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace treehammer {

/// Argument of the payload's analysis: the events of one or all files.
class FramePass {
   std::vector<ROOT::RDF::RResultPtr<TH1D>> fHistograms;
   std::vector<std::pair<std::string, std::function<double()>>> fReported;
   ROOT::RDF::RResultPtr<ULong64_t> fRead, fKept;

public:
   ROOT::RDF::RNode frame;

   explicit FramePass(ROOT::RDF::RNode all) : fRead(all.Count()), frame(all) {}

   /// Count the events that a filter keeps.
   void Keep(ROOT::RDF::RNode kept) { fKept = kept.Count(); }

   /// Fill a histogram in the loop; its limits must be fixed.
   void Book(ROOT::RDF::RResultPtr<TH1D> histogram) { fHistograms.push_back(histogram); }

   /// Report the result of an action under a name declared in test.toml; event loops are summed.
   template <typename Number>
   void Report(const std::string &name, ROOT::RDF::RResultPtr<Number> result)
   {
      fReported.emplace_back(name, [result]() mutable { return static_cast<double>(*result); });
   }
   void Report(const std::string &name, double value)
   {
      fReported.emplace_back(name, [value] { return value; });
   }

   /// Have a function called in the loop after all actions on an entry; one thread only.
   void AfterEachEntry(std::function<void()> function)
   {
      fRead.OnPartialResult(1, [function](ULong64_t &) { function(); });
   }

   /// Run the one event loop that gives all results; errors of an RNTuple's pages are failed reads.
   void Run()
   {
#if ROOT_VERSION_CODE >= ROOT_VERSION(6, 36, 0) // the first with this class, and with the released format
      try {
         fRead.GetValue();
      } catch (const ROOT::RException &error) {
         const std::string text = error.what();
         throw ReadError(text.substr(0, text.find('\n')));
      }
#else
      fRead.GetValue();
#endif
   }

   ULong64_t Read() { return *fRead; }
   ULong64_t Kept() { return fKept ? *fKept : *fRead; }

   /// Reported values after the loop; those of one name are summed.
   std::map<std::string, double> Reported() const
   {
      std::map<std::string, double> values;
      for (const auto &reported : fReported)
         values[reported.first] += reported.second();
      return values;
   }

   /// Contents of a histogram's bins with underflow and overflow.
   std::vector<double> Bins(std::size_t index)
   {
      TH1D &histogram = *fHistograms.at(index);
      std::vector<double> bins;
      for (int bin = 0; bin <= histogram.GetNbinsX() + 1; ++bin)
         bins.push_back(histogram.GetBinContent(bin));
      return bins;
   }
   std::string Name(std::size_t index) { return fHistograms.at(index)->GetName(); }
   std::size_t Size() const { return fHistograms.size(); }
};

using Analysis = void (*)(FramePass &);

inline Analysis &TheAnalysis()
{
   static Analysis analysis = nullptr;
   return analysis;
}

/// Results of an event loop: numbers of events, contents of histograms by name, reported values.
struct FrameResults {
   Long64_t read, kept;
   std::vector<std::pair<std::string, std::vector<double>>> bins;
   std::map<std::string, double> reported;
};

/// Let event loops run in so many threads.
inline void EnableThreads(int threads)
{
   ROOT::EnableImplicitMT(threads);
}

/// One timed event loop over some files: Open, Prepare, Run, Close, in this order.
/// StartTurns, RunTurn and FinishTurns replace Run.
class FrameReader : public FileReader {
   std::unique_ptr<ROOT::RDataFrame> fFrame;
   std::vector<std::string> fUrls;
   std::unique_ptr<GatedLoop> fGate;

   /// Run a step outside of the loop and time it.
   template <typename Body>
   bool Step(Clock &clock, const char *doing, Body &&body)
   {
      const Clock start = Clock::Now();
      const bool good = Guard(body);
      clock = Clock::Now() - start;
      return good && WithoutErrors("open", doing);
   }

public:
   std::unique_ptr<FramePass> current;
   Long64_t bytes_read = 0, read_calls = 0;

   FrameReader() = default;
   ~FrameReader() { fGate.reset(); } // before the loop's objects

   /// `urls` are separated by line breaks.
   bool Open(const std::string &tree, const std::string &urls)
   {
      WatchErrors();
      fUrls.clear();
      std::istringstream stream(urls);
      for (std::string url; std::getline(stream, url);)
         fUrls.push_back(url);
      if (Step(open, "opening the files of a data frame", [&] { fFrame.reset(new ROOT::RDataFrame(tree, fUrls)); }))
         return true;
      if (failure_class == "payload") // none of its code has run; ROOT 6.40 throws at fields of std::bitset
         Fail("open", "tree", fUrls.front() + ": ROOT cannot make a data frame of '" + tree + "': " + message +
                                 ". Read it with one thread, with ttree-read or rntuple-read");
      return false;
   }

   bool Prepare()
   {
      return Step(prepare, "preparing an analysis", [&] {
         current.reset(new FramePass(ROOT::RDF::RNode(*fFrame)));
         TheAnalysis()(*current);
      });
   }

   bool Run()
   {
      StartLoop();
      if (!Measure([this] { current->Run(); }))
         return false;
      FinishLoop();
      return true;
   }

   /// Start a loop of turns over `entries` entries; FinishTurns ends it.
   void StartTurns(Long64_t entries)
   {
      FileReader::StartTurns();
      StartLoop();
      fGate = std::make_unique<GatedLoop>([this] { current->Run(); }, entries);
      current->AfterEachEntry([gate = fGate.get()] { gate->Pass(); });
   }

   bool RunTurn(Long64_t, Long64_t last)
   {
      const Long64_t events = fGate->Done(), bytes = TFile::GetFileBytesRead(), chars = kernel_read_chars;
      if (!MeasureTurn([this, last] { fGate->RunUntil(last); }))
         return false;
      turn.events = fGate->Done() - events;
      // RNTuples of local files are not read with TFile.
      turn.bytes = std::max<Long64_t>(TFile::GetFileBytesRead() - bytes, kernel_read_chars - chars);
      return true;
   }

   void FinishTurns() { FinishLoop(); }

   void StartLoop()
   {
      bytes_read = -TFile::GetFileBytesRead();
      read_calls = -TFile::GetFileReadCalls();
   }

   void FinishLoop()
   {
      bytes_read += TFile::GetFileBytesRead();
      read_calls += TFile::GetFileReadCalls();
   }

   FrameResults Results()
   {
      FrameResults results{Long64_t(current->Read()), Long64_t(current->Kept()), {}, {}};
      for (std::size_t index = 0; index < current->Size(); ++index)
         results.bins.emplace_back(current->Name(index), current->Bins(index));
      results.reported = current->Reported();
      return results;
   }

   void Close()
   {
      fGate.reset(); // ends a loop that was discarded
      CollectOtherFiles(fUrls);
      const Clock start = Clock::Now();
      current.reset();
      fFrame.reset();
      close = Clock::Now() - start;
   }

   /// Columns of the files, with their types; empty for those that RDataFrame lists and cannot read, such
   /// as a branch "#x", which it takes for the size of a list.
   std::vector<std::pair<std::string, std::string>> Columns() const
   {
      std::vector<std::pair<std::string, std::string>> found;
      for (const auto &name : fFrame->GetColumnNames()) {
         try {
            found.emplace_back(name, fFrame->GetColumnType(name));
         } catch (const std::exception &) {
            found.emplace_back(name, "");
         }
      }
      return found;
   }
};

} // namespace treehammer
#endif
