// Measures how a tree lies in its file.
#pragma once

#include <TBasket.h>
#include <TBranch.h>
#include <TObjArray.h>
#include <TTree.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <tuple>
#include <vector>

namespace treehammer {

/// Bytes of each top-level branch, basket and cluster; of an RNTuple, of each field, page and cluster.
/// `embedded` are the uncompressed bytes of a branch's baskets that lie inside the tree's own record,
/// `embeddedBaskets` and `embeddedClusters` those of each such basket, and of them in each cluster.
struct Layout {
   Long64_t entries = 0;
   std::vector<Long64_t> unzipped, zipped, embedded, baskets, clusters, embeddedBaskets, embeddedClusters;
   Long64_t spanning = 0; ///< baskets with entries of several clusters
   bool byEntry = true, byBranch = true; ///< how the baskets are sorted; both can be true
   double meanJump = 0;                  ///< from a basket to the next that an event loop needs
};

/// Where a basket is: its first entry, its branch (in the order of the tree), its bytes in the file.
struct Place {
   Long64_t entry;
   std::size_t branch;
   Long64_t begin, end;
};

class TreeMeasure {
public:
   explicit TreeMeasure(TTree &tree)
   {
      auto clusters = tree.GetClusterIterator(0);
      for (Long64_t start = clusters(); start < tree.GetEntries(); start = clusters())
         fStarts.push_back(start);
      // ROOT guesses two clusters of a tree that was never flushed, so that all of it is embedded.
      if (!fStarts.empty() && tree.GetZipBytes() == 0)
         fStarts.resize(1);
      layout.entries = tree.GetEntries();
      layout.clusters.resize(fStarts.size());
      layout.embeddedClusters.resize(fStarts.size());
      for (auto *item : *tree.GetListOfBranches()) {
         auto &branch = *static_cast<TBranch *>(item);
         layout.unzipped.push_back(branch.GetTotBytes("*"));
         layout.zipped.push_back(branch.GetZipBytes("*"));
         layout.embedded.push_back(0);
         addBaskets(branch);
      }
      findOrder();
   }

   Layout layout;

private:
   void addBaskets(TBranch &branch)
   {
      for (Int_t i = 0; i < branch.GetWriteBasket(); ++i) {
         const Long64_t bytes = branch.GetBasketBytes()[i];
         if (bytes <= 0) // embedded
            continue;
         const Long64_t entry = branch.GetBasketEntry()[i];
         layout.baskets.push_back(bytes);
         addToCluster(layout.clusters, entry, bytes);
         layout.spanning += findCluster(entry) != findCluster(branch.GetBasketEntry()[i + 1] - 1);
         fPlaces.push_back({entry, fBranches, branch.GetBasketSeek(i), branch.GetBasketSeek(i) + bytes});
      }
      ++fBranches;
      const auto &inMemory = *branch.GetListOfBaskets();
      for (Int_t i = 0; i < inMemory.GetSize(); ++i) {
         auto *basket = static_cast<TBasket *>(inMemory.UncheckedAt(i));
         // Other writers than ROOT leave an empty basket in the record for each one in the file.
         if (!basket || !basket->GetBufferRef())
            continue;
         // It was not asked for: it came with the tree's record.
         const Long64_t bytes = basket->GetLast();
         layout.embedded.back() += bytes;
         layout.embeddedBaskets.push_back(bytes);
         addToCluster(layout.embeddedClusters, branch.GetBasketEntry()[i], bytes);
      }
      for (auto *child : *branch.GetListOfBranches())
         addBaskets(*static_cast<TBranch *>(child));
   }

   /// Add the bytes of a basket to its cluster; a tree without entries has none, though a branch may.
   void addToCluster(std::vector<Long64_t> &clusters, Long64_t entry, Long64_t bytes) const
   {
      if (!clusters.empty())
         clusters[findCluster(entry)] += bytes;
   }

   std::size_t findCluster(Long64_t entry) const
   {
      const auto after = std::upper_bound(fStarts.begin(), fStarts.end(), entry);
      return after == fStarts.begin() ? 0 : after - fStarts.begin() - 1;
   }

   void findOrder()
   {
      auto inFile = fPlaces;
      std::sort(inFile.begin(), inFile.end(), [](const Place &a, const Place &b) { return a.begin < b.begin; });
      std::set<std::size_t> ended;
      for (std::size_t i = 1; i < inFile.size(); ++i) {
         const auto &before = inFile[i - 1], &now = inFile[i];
         layout.byEntry = layout.byEntry && before.entry <= now.entry;
         if (before.branch != now.branch)
            ended.insert(before.branch);
         layout.byBranch = layout.byBranch && !ended.count(now.branch);
      }
      auto needed = fPlaces;
      std::sort(needed.begin(), needed.end(), [](const Place &a, const Place &b) {
         return std::tie(a.entry, a.branch) < std::tie(b.entry, b.branch);
      });
      for (std::size_t i = 1; i < needed.size(); ++i)
         layout.meanJump += std::abs(needed[i].begin - needed[i - 1].end) / double(needed.size() - 1);
   }

   std::vector<Long64_t> fStarts;
   std::vector<Place> fPlaces;
   std::size_t fBranches = 0;
};

inline Layout measure(TTree &tree)
{
   return TreeMeasure(tree).layout;
}

} // namespace treehammer
