// Timed analysis of all files of a dataset with RDataFrame and, if asked for, implicit multi-threading.
#ifndef TREEHAMMER_DATAFRAME
#define TREEHAMMER_DATAFRAME

#include "../file_reader.hpp"

#include <ROOT/RDataFrame.hxx>
#include <ROOT/RResultPtr.hxx>
#include <TH1D.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace treehammer {

/// Argument of the payload's analysis: the events of one or all files.
class FramePass {
   std::vector<ROOT::RDF::RResultPtr<TH1D>> fHistograms;
   ROOT::RDF::RResultPtr<ULong64_t> fRead, fKept;

public:
   ROOT::RDF::RNode frame;

   explicit FramePass(ROOT::RDF::RNode all) : fRead(all.Count()), frame(all) {}

   /// Count the events that a filter keeps.
   void Keep(ROOT::RDF::RNode kept) { fKept = kept.Count(); }

   /// Fill a histogram in the loop; its limits must be fixed.
   void Book(ROOT::RDF::RResultPtr<TH1D> histogram) { fHistograms.push_back(histogram); }

   /// Run the one event loop that gives all results.
   void Run() { fRead.GetValue(); }

   ULong64_t Read() { return *fRead; }
   ULong64_t Kept() { return fKept ? *fKept : *fRead; }

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

/// One timed event loop over some files: Open, Prepare, Run, Close, in this order.
class FrameReader : public FileReader {
   std::unique_ptr<ROOT::RDataFrame> fFrame;

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

   bool Open(const std::string &tree, const std::vector<std::string> &urls)
   {
      WatchErrors();
      return Step(open, "opening the files of a data frame", [&] { fFrame.reset(new ROOT::RDataFrame(tree, urls)); });
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
      bytes_read = -TFile::GetFileBytesRead();
      read_calls = -TFile::GetFileReadCalls();
      if (!Measure([this] { current->Run(); }))
         return false;
      bytes_read += TFile::GetFileBytesRead();
      read_calls += TFile::GetFileReadCalls();
      return true;
   }

   void Close()
   {
      const Clock start = Clock::Now();
      current.reset();
      fFrame.reset();
      close = Clock::Now() - start;
   }

   /// Columns of the files, with their types.
   std::vector<std::pair<std::string, std::string>> Columns() const
   {
      std::vector<std::pair<std::string, std::string>> found;
      for (const auto &name : fFrame->GetColumnNames())
         found.emplace_back(name, fFrame->GetColumnType(name));
      return found;
   }
};

} // namespace treehammer
#endif
