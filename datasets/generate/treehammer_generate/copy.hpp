// Writes the events of a tree anew, as they are, into a tree of another file.
#pragma once

#include "tree.hpp"

#include <TBranchElement.h>
#include <TBufferFile.h>
#include <TClass.h>
#include <TClassEdit.h>
#include <TLeaf.h>
#include <TMemFile.h>
#include <TStreamerInfo.h>
#include <TVirtualCollectionProxy.h>

#include <set>

namespace treehammer {

/// The entry in memory of a top-level branch, as bytes that depend on values alone.  The bytes in
/// the file do not: versions of classes in them are those that their writer knew.
inline std::string valueBytes(TBranch &branch)
{
   if (auto *element = dynamic_cast<TBranchElement *>(&branch)) {
      TClass *type = nullptr;
      EDataType number = kOther_t;
      TBufferFile buffer(TBuffer::kWrite);
      if (!element->GetExpectedType(type, number) && type && element->GetObject())
         buffer.StreamObject(element->GetObject(), type);
      return {buffer.Buffer(), static_cast<std::size_t>(buffer.Length())};
   }
   std::string bytes;
   for (auto *item : *branch.GetListOfLeaves()) {
      auto &leaf = *static_cast<TLeaf *>(item);
      const auto size = static_cast<std::size_t>(leaf.GetLen()) * leaf.GetLenType();
      bytes.append(static_cast<const char *>(leaf.GetValuePointer()), size);
   }
   return bytes;
}

inline void describe(TClass *type, TFile &file)
{
   if (!type)
      return;
   if (auto *proxy = type->GetCollectionProxy())
      describe(proxy->GetValueClass(), file);
   const std::string name = type->GetName();
   if (TClassEdit::IsSTLCont(name) != ROOT::kNotSTL || name == "string")
      return; // known everywhere
   if (auto *info = type->GetStreamerInfo()) {
      info->ForceWriteInfo(&file, true); // with its members' classes, but not of collections
      info->TagFile(&file);
   }
}

inline void describe(TBranch &branch, TFile &file)
{
   if (auto *element = dynamic_cast<TBranchElement *>(&branch)) {
      for (const char *name : {element->GetClassName(), element->GetTypeName(), element->GetClonesName()})
         describe(TClass::GetClass(name, true, true), file);
   }
   for (auto *child : *branch.GetListOfBranches())
      describe(*static_cast<TBranch *>(child), file);
}

/// Put the layout of every class that the tree tells of into the file, as its source has it.
///
/// ROOT itself does so for the objects that it has written.  Of those that are in pieces or were
/// empty in every event it knows better than who reads the file elsewhere, without a dictionary:
/// there, ROOT aborts.
inline void describe(TTree &tree, TFile &file)
{
   for (auto *item : *tree.GetListOfBranches())
      describe(*static_cast<TBranch *>(item), file);
}

/// A tree in a new file that is filled from the memory of a source's branches.
class Copier {
public:
   explicit Copier(TTree &source) : fSource(source) {}
   virtual ~Copier() = default;

   /// Top-level branches that ROOT does not write as they were read; from now on they are left out.
   /// Found by a trial: one copy of the first entries in memory, read back and compared by value.
   std::vector<std::string> leaveOut(Long64_t entries)
   {
      TMemFile file("trial.root", "RECREATE");
      auto *copy = clone(file, 0);
      for (Long64_t entry = 0; entry < entries; ++entry) {
         read(entry);
         copy->Fill();
      }
      copy->FlushBaskets();
      fSource.CopyAddresses(copy, true); // from here on it has memory of its own
      std::set<std::string> names;
      for (Long64_t entry = 0; entry < entries; ++entry) {
         read(entry);
         copy->GetEntry(entry);
         for (auto *item : *fSource.GetListOfBranches()) {
            auto &branch = *static_cast<TBranch *>(item);
            auto *made = copy->GetBranch(branch.GetName());
            if (!made || valueBytes(branch) != valueBytes(*made))
               names.insert(branch.GetName());
         }
      }
      for (const auto &name : names)
         fSource.SetBranchStatus(name.c_str(), false);
      return {names.begin(), names.end()};
   }

   void close()
   {
      describe(*fTree, *fFile);
      finish(*fFile);
   }

protected:
   /// Create the file and its tree, which lies in the folder that its name begins with.
   void create(const std::string &url, const std::string &folder, int compression)
   {
      fFile = treehammer::create(url, compression);
      TDirectory *directory = fFile.get();
      if (!folder.empty())
         directory = fFile->mkdir(folder.c_str(), "", true);
      fTree = clone(*directory, compression);
   }

   void read(Long64_t entry)
   {
      if (fSource.GetEntry(entry) < 0)
         throw std::runtime_error("the source cannot be read at entry " + std::to_string(entry));
   }

   /// An empty tree that is filled from the memory of the source's branches.
   TTree *clone(TDirectory &directory, int compression)
   {
      directory.cd();
      auto *tree = fSource.CloneTree(0);
      if (!tree)
         throw std::runtime_error("the source's tree cannot be cloned");
      tree->SetDirectory(&directory);
      tree->SetAutoSave(0); // no intermediate copies of the tree's own record
      for (auto *item : *tree->GetListOfBranches())
         static_cast<TBranch *>(item)->SetCompressionSettings(compression);
      return tree;
   }

   static constexpr int kFirstBaskets = 32000; ///< bytes; ROOT's default, for the first cluster
   TTree &fSource;
   std::unique_ptr<TFile> fFile;
   TTree *fTree = nullptr; // owned by the file
};

/// Compares what no checksum of values covers: objects, entry by entry, in two trees.
class Comparer {
public:
   /// Top-level branches of `covered` names (with '_' for '.', as the checksum names them) need no
   /// comparing, nor do those that only one tree has.
   Comparer(TTree &one, TTree &other, const std::vector<std::string> &covered) : fOne(one), fOther(other)
   {
      const std::set<std::string> uncompared(covered.begin(), covered.end());
      fOne.SetBranchStatus("*", false);
      fOther.SetBranchStatus("*", false);
      for (auto *item : *fOne.GetListOfBranches()) {
         auto *branch = static_cast<TBranch *>(item);
         auto *match = static_cast<TBranch *>(fOther.GetListOfBranches()->FindObject(branch->GetName()));
         std::string name = branch->GetName();
         std::replace(name.begin(), name.end(), '.', '_');
         if (!match || branch->IsA() == TBranch::Class() || uncompared.count(name))
            continue;
         activate(*branch);
         activate(*match);
         fPairs.emplace_back(branch, match);
      }
   }

   std::size_t compared() const { return fPairs.size(); }

   void fill(Long64_t first, Long64_t last)
   {
      for (Long64_t entry = first; entry < last && !fPairs.empty(); ++entry) {
         if (fOne.GetEntry(entry) < 0 || fOther.GetEntry(entry) < 0)
            throw std::runtime_error("cannot be read at entry " + std::to_string(entry));
         for (const auto &[branch, match] : fPairs)
            if (valueBytes(*branch) != valueBytes(*match))
               differing.insert(branch->GetName());
      }
   }

   void close() {}

   std::set<std::string> differing; ///< names of branches

private:
   static void activate(TBranch &branch)
   {
      branch.ResetBit(::kDoNotProcess);
      for (auto *child : *branch.GetListOfBranches())
         activate(*static_cast<TBranch *>(child));
   }

   TTree &fOne, &fOther;
   std::vector<std::pair<TBranch *, TBranch *>> fPairs;
};

} // namespace treehammer
