// Checksum of a TTree's values.
#ifndef TREEHAMMER_CHECKSUM
#define TREEHAMMER_CHECKSUM

#include "kit.hpp"
#include "values.hpp"

#include <TBranchElement.h>
#include <TDataType.h>
#include <TLeafObject.h>

#include <cstring>
#include <set>
#include <typeinfo>

namespace treehammer {

class TreeChecksum : public ValueHashes {
   using Feeding = void (*)(uint64_t &hash, const void *holder, std::size_t);

   template <typename T>
   static void FeedLeaf(uint64_t &hash, const void *holder, std::size_t)
   {
      const auto *leaf = static_cast<const TLeaf *>(holder);
      FeedNumbers(hash, static_cast<const T *>(leaf->GetValuePointer()), leaf->GetLen());
   }

   static void FeedText(uint64_t &hash, const void *holder, std::size_t)
   {
      FeedValue(hash, std::string(static_cast<char *>(static_cast<const TLeaf *>(holder)->GetValuePointer())));
   }

   template <typename T>
   static void FeedObject(uint64_t &hash, const void *holder, std::size_t)
   {
      FeedValue(hash, *reinterpret_cast<const T *>(static_cast<const TBranchElement *>(holder)->GetObject()));
   }

   void Add(const std::string &name, const char *kind, const void *holder, Feeding feed)
   {
      fLeaves.push_back({name, kind, [holder] { return holder; }, feed});
   }

   template <typename T>
   bool CoverNumbers(TLeaf *leaf, const std::string &name, const char *type)
   {
      if (std::strcmp(leaf->GetTypeName(), type) != 0)
         return false;
      Add(name, KindOf<T>(), leaf, FeedLeaf<T>);
      return true;
   }

   bool CoverPlain(TLeaf *leaf, const std::string &name)
   {
      if (std::strcmp(leaf->ClassName(), "TLeafC") == 0) {
         Add(name, KindOf<std::string>(), leaf, FeedText);
         return true;
      }
      return CoverNumbers<Bool_t>(leaf, name, "Bool_t") || CoverNumbers<Char_t>(leaf, name, "Char_t") ||
             CoverNumbers<UChar_t>(leaf, name, "UChar_t") || CoverNumbers<Short_t>(leaf, name, "Short_t") ||
             CoverNumbers<UShort_t>(leaf, name, "UShort_t") || CoverNumbers<Int_t>(leaf, name, "Int_t") ||
             CoverNumbers<UInt_t>(leaf, name, "UInt_t") || CoverNumbers<Long64_t>(leaf, name, "Long64_t") ||
             CoverNumbers<ULong64_t>(leaf, name, "ULong64_t") || CoverNumbers<Long_t>(leaf, name, "Long_t") ||
             CoverNumbers<ULong_t>(leaf, name, "ULong_t") || CoverNumbers<Float_t>(leaf, name, "Float_t") ||
             CoverNumbers<Double_t>(leaf, name, "Double_t") || CoverNumbers<Float_t>(leaf, name, "Float16_t") ||
             CoverNumbers<Double_t>(leaf, name, "Double32_t");
   }

   template <typename T>
   bool CoverObject(TBranchElement *branch, const TClass *type)
   {
      if (!type->GetTypeInfo() || *type->GetTypeInfo() != typeid(T))
         return false;
      Add(branch->GetName(), KindOf<T>(), branch, FeedObject<T>);
      return true;
   }

   template <typename... T>
   bool CoverVectors(TBranchElement *branch, const TClass *type)
   {
      return (CoverObject<std::vector<T>>(branch, type) || ...);
   }

   /// Cover a top-level branch that is one unsplit object of the standard library.  Vectors of vectors
   /// are skipped: whether ROOT has their real type in memory, or an emulated one, differs by release.
   bool CoverTopObject(TBranch *branch)
   {
      auto *element = dynamic_cast<TBranchElement *>(branch);
      TClass *type = nullptr;
      EDataType number;
      if (!element || element->GetMother() != element || element->GetListOfBranches()->GetEntriesFast() ||
          element->GetExpectedType(type, number) || !type)
         return false;
      return CoverObject<std::string>(element, type) ||
             CoverVectors<bool, char, signed char, unsigned char, short, unsigned short, int, unsigned, long,
                          unsigned long, Long64_t, ULong64_t, float, double, std::string>(element, type);
   }

   /// Cover the supported leaves of a branch and its sub-branches; true if there are any.
   bool Cover(TBranch *branch)
   {
      bool any = CoverTopObject(branch);
      if (!any)
         for (auto *object : *branch->GetListOfLeaves()) {
            auto *leaf = static_cast<TLeaf *>(object);
            const bool single = branch->GetListOfLeaves()->GetEntriesFast() == 1;
            const std::string name =
               branch->GetName() + (single ? std::string() : std::string(".") + leaf->GetName());
            if (branch->IsA() == TBranch::Class() && CoverPlain(leaf, name))
               any = true;
            else if (!branch->GetListOfBranches()->GetEntriesFast())
               uncovered.push_back(name + " (" + leaf->GetTypeName() + ")");
         }
      for (auto *child : *branch->GetListOfBranches())
         any = Cover(static_cast<TBranch *>(child)) || any;
      return any;
   }

public:
   /// Feed all entries of one file's tree; false, with a message, when an entry cannot be read.
   bool Read(TTree *tree)
   {
      Clear();
      branches = 0;
      tree->SetCacheSize(30'000'000);
      tree->SetBranchStatus("*", false);
      std::set<std::string> names; // of several branches of one name, readers find the first
      for (auto *object : *tree->GetListOfBranches()) {
         auto *branch = static_cast<TBranch *>(object);
         if (IsLeftOut(branch->GetName()) || !names.insert(branch->GetName()).second)
            continue;
         ++branches;
         if (!Cover(branch))
            continue; // no leaf can be hashed, so it is not read
         Activate(branch);
         tree->AddBranchToCache(branch, true);
      }
      tree->StopCacheLearningPhase();
      Begin();
      for (Long64_t entry = 0; entry < tree->GetEntries(); ++entry) {
         if (tree->GetEntry(entry) < 0) {
            message = "GetEntry returned -1 for entry " + std::to_string(entry) + " (" + FirstError() + ")";
            return false;
         }
         FeedEntry();
      }
      if (!FirstError().empty()) {
         message = "ROOT reported an error (" + FirstError() + ")";
         return false;
      }
      End();
      return true;
   }
};

} // namespace treehammer
#endif
