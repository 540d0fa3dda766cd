// Writes the events of a tree anew with another layout, or its baskets in another order.
#pragma once

#include "copy.hpp"

namespace treehammer {

/// What is to differ from the source.
struct NewLayout {
   int compression = -1;      ///< as ROOT counts; -1: as the source
   Long64_t autoFlush = 0;    ///< events of a cluster; bytes where negative; 0: clusters as the source's
   int basketSize = 0;        ///< bytes of a basket of every branch; 0: see below
   Long64_t basketMemory = 0; ///< bytes of all baskets together, which ROOT divides; 0: see below
   bool acrossClusters = false; ///< whether a basket is written when it is full, not at the end of a cluster
   // Without either the baskets are the source's where the clusters are, else what ROOT chooses.
};

class Rewriter final : public Copier {
public:
   using Copier::Copier;

   void open(const std::string &url, const std::string &folder, const NewLayout &layout)
   {
      fLayout = layout;
      const int file = layout.compression < 0 ? fSource.GetCurrentFile()->GetCompressionSettings() : layout.compression;
      create(url, folder, file);
      sizeBaskets();
      if (layout.compression < 0)
         eachPair([](TBranch &from, TBranch &to) { to.SetCompressionSettings(from.GetCompressionSettings()); });
      fTree->SetAutoFlush(layout.autoFlush);
      if (layout.autoFlush == 0 && fSource.GetAutoFlush() <= 0)
         fTree->SetAutoFlush(fSource.GetAutoFlush()); // of which nothing is known but the limit
      else if (layout.autoFlush == 0)
         findClusters();
   }

   void fill(Long64_t first, Long64_t last)
   {
      for (Long64_t event = first; event < last; ++event) {
         const auto cluster = fClusters.find(event);
         if (cluster != fClusters.end())
            fTree->SetAutoFlush(cluster->second);
         read(event);
         if (fLayout.acrossClusters) {
            fillBranches();
            continue;
         }
         if (fTree->Fill() < 0)
            throw std::runtime_error("cannot be written");
         // At the end of the first cluster ROOT chooses baskets.  A limit in bytes has by then become
         // one in events.
         if (event + 1 == fTree->GetAutoFlush() && !fSettled) {
            fSettled = true;
            settle();
         }
      }
      checkWritten(*fFile);
   }

private:
   /// Fill branch by branch, as TBranch::Fill does for one that is added later: no cluster ends a basket.
   void fillBranches()
   {
      for (auto *item : *fTree->GetListOfBranches())
         if (static_cast<TBranch *>(item)->Fill() < 0)
            throw std::runtime_error("cannot be written");
      fTree->SetEntries(fTree->GetEntries() + 1);
   }

   /// Calls the function for each branch of the source that is copied, and its copy.
   template <class Function>
   void eachPair(Function function)
   {
      for (auto *item : *fTree->GetListOfBranches()) {
         auto &copy = *static_cast<TBranch *>(item);
         auto *from = fSource.GetListOfBranches()->FindObject(copy.GetName());
         eachPair(*static_cast<TBranch *>(from), copy, function);
      }
   }

   template <class Function>
   static void eachPair(TBranch &from, TBranch &to, Function function)
   {
      function(from, to);
      for (Int_t i = 0; i < to.GetListOfBranches()->GetEntriesFast(); ++i)
         eachPair(*static_cast<TBranch *>(from.GetListOfBranches()->UncheckedAt(i)),
                  *static_cast<TBranch *>(to.GetListOfBranches()->UncheckedAt(i)), function);
   }

   /// Sizes that are known before anything is written.
   void sizeBaskets()
   {
      if (fLayout.basketSize > 0)
         fTree->SetBasketSize("*", fLayout.basketSize);
      else if (fLayout.autoFlush == 0 && fLayout.basketMemory == 0)
         eachPair([](TBranch &from, TBranch &to) { to.SetBasketSize(from.GetBasketSize()); });
      else
         fTree->SetBasketSize("*", kFirstBaskets);
   }

   void settle()
   {
      if (fLayout.basketMemory > 0)
         fTree->OptimizeBaskets(static_cast<ULong64_t>(fLayout.basketMemory), 1.1, "");
      else if (fLayout.basketSize > 0 || fLayout.autoFlush == 0)
         sizeBaskets(); // ROOT has just chosen others
   }

   /// Where the source's clusters begin to have another length; the last may be shorter for lack of events.
   void findClusters()
   {
      auto clusters = fSource.GetClusterIterator(0);
      Long64_t length = 0;
      for (Long64_t start = clusters(); start < fSource.GetEntries(); start = clusters()) {
         const Long64_t found = clusters.GetNextEntry() - start;
         const bool cut = clusters.GetNextEntry() >= fSource.GetEntries() && found < length;
         if (found != length && !cut)
            fClusters[start] = length = found;
      }
   }

   NewLayout fLayout;
   bool fSettled = false;
   std::map<Long64_t, Long64_t> fClusters; // first event -> events of the clusters from there on
};

/// Write the baskets of a tree into a new file as they are, in the order of a method of TTreeCloner.
inline void writeInOrder(TTree &source, const std::string &url, const std::string &folder, const std::string &method)
{
   auto file = create(url, source.GetCurrentFile()->GetCompressionSettings());
   TDirectory *directory = folder.empty() ? file.get() : file->mkdir(folder.c_str(), "", true);
   directory->cd();
   auto *tree = source.CloneTree(-1, ("fast " + method).c_str());
   if (!tree || tree->GetEntries() != source.GetEntries())
      throw std::runtime_error("its baskets cannot be copied");
   tree->SetAutoSave(0); // no intermediate copies of the tree's own record
   describe(*tree, *file);
   finish(*file);
}

} // namespace treehammer
