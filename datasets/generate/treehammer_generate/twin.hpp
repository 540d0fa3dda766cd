// Writes the events of a tree as an RNTuple, by ROOT's own importer.
#pragma once

#include <ROOT/RField.hxx>
#include <ROOT/RNTupleImporter.hxx>

#include <TBranch.h>
#include <TBranchElement.h>
#include <TClass.h>
#include <TLeafElement.h>
#include <TLeafObject.h>
#include <TTree.h>
#include <TTreePerfStats.h>
#include <TVirtualCollectionProxy.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace treehammer {

/// Why an RNTuple cannot hold this top-level branch; '' when it can.
inline std::string whyNot(TBranch &branch)
{
   auto *leaf = static_cast<TLeaf *>(branch.GetListOfLeaves()->First());
   if (!leaf || leaf->IsA() == TLeafObject::Class())
      return "is a TObject";
   const bool isClass = leaf->IsA() == TLeafElement::Class();
   const std::string type = isClass ? branch.GetClassName() : leaf->GetTypeName();
   try {
      auto field = ROOT::RFieldBase::Create("field", type);
      if (!field)
         return type + " is no type of a field";
   } catch (const std::exception &) {
      return type + " is no type of a field";
   }
   auto *described = isClass ? TClass::GetClass(type.c_str()) : nullptr;
   auto *proxy = described ? described->GetCollectionProxy() : nullptr;
   if (proxy && (proxy->GetProperties() & TVirtualCollectionProxy::kIsEmulated))
      return type + " has no dictionary";
   return "";
}

/// Names of the branches that an RNTuple cannot hold, and why.
inline std::vector<std::pair<std::string, std::string>> notForTwin(TTree &tree)
{
   std::vector<std::pair<std::string, std::string>> found;
   for (auto *item : *tree.GetListOfBranches()) {
      const auto reason = whyNot(*static_cast<TBranch *>(item));
      if (!reason.empty())
         found.emplace_back(item->GetName(), reason);
   }
   return found;
}

/// Take a branch out of the tree in memory: the importer takes all that there are.
inline void takeOut(TTree &tree, const std::string &name)
{
   auto *branch = static_cast<TBranch *>(tree.GetListOfBranches()->FindObject(name.c_str()));
   for (auto *leaf : *branch->GetListOfLeaves())
      tree.GetListOfLeaves()->Remove(leaf);
   tree.GetListOfBranches()->Remove(branch);
   tree.GetListOfLeaves()->Compress();
   tree.GetListOfBranches()->Compress();
}

/// Says now and then which entry is being read: the importer tells nobody how far it is.
class Follower final : public TTreePerfStats {
public:
   Follower(TTree &tree, int channel) : TTreePerfStats("follower", &tree), fChannel(channel) {}
   void FileReadEvent(TFile *, Int_t, Double_t) override
   {
      const auto now = std::chrono::steady_clock::now();
      if (now - fSaid < std::chrono::milliseconds(500))
         return;
      fSaid = now;
      dprintf(fChannel, "{\"done\": %lld}\n", std::max(0LL, fTree->GetReadEntry()));
   }
   void UnzipEvent(TObject *, Long64_t, Double_t, Int_t, Int_t) override {}

private:
   int fChannel;
   std::chrono::steady_clock::time_point fSaid{};
};

/// Write the twin; `clusterBytes` 0 means ROOT's default.  ROOT's exceptions pass through.
inline void writeTwin(TTree &tree, const std::string &url, const std::string &name, int compression,
                      std::size_t clusterBytes, int channel)
{
   auto importer = ROOT::Experimental::RNTupleImporter::Create(&tree, url);
   importer->SetIsQuiet(true);
   importer->SetNTupleName(name);
   importer->SetConvertDotsInBranchNames(true); // the name of a field has none
   auto options = importer->GetWriteOptions();
   options.SetCompression(compression);
   options.SetUseImplicitMT(ROOT::RNTupleWriteOptions::EImplicitMT::kOff);
   if (clusterBytes != 0) {
      // At any moment the one must not be larger than the other.
      options.SetApproxZippedClusterSize(std::min(clusterBytes, options.GetApproxZippedClusterSize()));
      // A page fits into a cluster, which is limited as by default.
      options.SetMaxUnzippedPageSize(std::min(10 * clusterBytes, options.GetMaxUnzippedPageSize()));
      options.SetMaxUnzippedClusterSize(10 * clusterBytes);
      options.SetApproxZippedClusterSize(clusterBytes);
   }
   importer->SetWriteOptions(options);
   Follower follower(tree, channel);
   importer->Import();
   tree.SetPerfStats(nullptr);
}

} // namespace treehammer
