// A checksum of values: one running 64-bit hash a leaf, fed entry by entry with the number of values
// and the values, so that it depends on content alone: not on layout, compression, file or release.
#ifndef TREEHAMMER_CHECKSUM
#define TREEHAMMER_CHECKSUM

#include "kit.hpp"

#include <TBranchElement.h>
#include <TDataType.h>
#include <TLeafObject.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <type_traits>
#include <typeinfo>

namespace treehammer {

inline void Feed(uint64_t &hash, uint64_t value)
{
   hash = Mix(hash ^ value) + 0x9E3779B97F4A7C15ull;
}

/// Integers by value, whatever their width in memory; floating-point numbers by their bits.
template <typename T>
void FeedValue(uint64_t &hash, const T &value)
{
   if constexpr (std::is_same_v<T, float>) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      Feed(hash, bits);
   } else if constexpr (std::is_same_v<T, double>) {
      uint64_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      Feed(hash, bits);
   } else if constexpr (std::is_integral_v<T>) {
      Feed(hash, uint64_t(int64_t(value)));
   } else { // std::string and std::vector, also of each other
      Feed(hash, value.size());
      for (const auto &item : value)
         FeedValue<typename T::value_type>(hash, item);
   }
}

/// One leaf that the checksum covers.
struct CoveredLeaf {
   std::string name, type;
   uint64_t hash = 0;
   std::function<void(uint64_t &)> feed; // with the current entry
};

/// Copy a piece of a file, as its door delivers it, to an address of Python's; false when it fails.
inline bool CopyOut(TFile *file, Long64_t at, Int_t length, std::uintptr_t target)
{
   return !file->ReadBuffer(reinterpret_cast<char *>(target), at, length);
}

class Checksum {
   std::vector<CoveredLeaf> fLeaves;
   std::map<std::string, uint64_t> fHashes; // running, across files

   template <typename T>
   bool CoverNumbers(TLeaf *leaf, const std::string &name, const char *type)
   {
      if (std::strcmp(leaf->GetTypeName(), type) != 0)
         return false;
      fLeaves.push_back({name, type, 0, [leaf](uint64_t &hash) {
                            const int length = leaf->GetLen();
                            const auto *values = static_cast<const T *>(leaf->GetValuePointer());
                            Feed(hash, length);
                            for (int i = 0; i < length; ++i)
                               FeedValue(hash, values[i]);
                         }});
      return true;
   }

   bool CoverPlain(TLeaf *leaf, const std::string &name)
   {
      if (std::strcmp(leaf->ClassName(), "TLeafC") == 0) {
         fLeaves.push_back({name, "text", 0, [leaf](uint64_t &hash) {
                               FeedValue(hash, std::string(static_cast<char *>(leaf->GetValuePointer())));
                            }});
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
      fLeaves.push_back({branch->GetName(), type->GetName(), 0, [branch](uint64_t &hash) {
                            FeedValue(hash, *reinterpret_cast<const T *>(branch->GetObject()));
                         }});
      return true;
   }

   template <typename... T>
   bool CoverVectors(TBranchElement *branch, const TClass *type)
   {
      return (CoverObject<std::vector<T>>(branch, type) || ...);
   }

   /// A top-level branch that is one unsplit object of the standard library.  Vectors of vectors are
   /// left out: whether ROOT has their real type in memory, or one it made up, differs by release.
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

   /// Cover what can be covered of a branch and of those below it; true when any leaf was.
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
   std::vector<std::string> uncovered;
   Long64_t entries = 0;
   std::string message;

   /// Feed all entries of one file's tree; false, with a message, when one cannot be read.
   bool Read(TTree *tree)
   {
      fLeaves.clear();
      uncovered.clear();
      tree->SetCacheSize(30'000'000);
      tree->SetBranchStatus("*", false);
      for (auto *object : *tree->GetListOfBranches()) {
         auto *branch = static_cast<TBranch *>(object);
         if (!Cover(branch))
            continue; // nothing of it can be hashed: it need not be read
         Activate(branch);
         tree->AddBranchToCache(branch, true);
      }
      tree->StopCacheLearningPhase();
      for (auto &leaf : fLeaves)
         leaf.hash = fHashes[leaf.name + " " + leaf.type];
      for (Long64_t entry = 0; entry < tree->GetEntries(); ++entry, ++entries) {
         if (tree->GetEntry(entry) < 0) {
            message = "GetEntry returned -1 for entry " + std::to_string(entry) + " (" + FirstError() + ")";
            return false;
         }
         for (auto &leaf : fLeaves)
            leaf.feed(leaf.hash);
      }
      if (!FirstError().empty()) {
         message = "ROOT met an error (" + FirstError() + ")";
         return false;
      }
      for (auto &leaf : fLeaves)
         fHashes[leaf.name + " " + leaf.type] = leaf.hash;
      return true;
   }

   /// "name type hash" of every covered leaf, in alphabetical order.
   std::vector<std::string> Lines() const
   {
      std::vector<std::string> lines;
      for (const auto &item : fHashes) {
         char text[17];
         std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(item.second));
         lines.push_back(item.first + " " + text);
      }
      return lines;
   }
};

} // namespace treehammer
#endif
