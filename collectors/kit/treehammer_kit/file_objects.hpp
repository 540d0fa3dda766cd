// Objects of a file by their paths, and what of a tree its numbers do not show: types, friends, and
// branches of other lengths.
#ifndef TREEHAMMER_FILE_OBJECTS
#define TREEHAMMER_FILE_OBJECTS

#include <TBranch.h>
#include <TBranchElement.h>
#include <TClass.h>
#include <TDirectory.h>
#include <TFile.h>
#include <TFriendElement.h>
#include <TKey.h>
#include <TLeaf.h>
#include <TList.h>
#include <TStreamerElement.h>
#include <TStreamerInfo.h>
#include <TTree.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace treehammer {

inline bool IsFolder(const std::string &type)
{
   return type == "TDirectoryFile" || type == "TDirectory";
}

inline bool IsNTuple(const std::string &type)
{
   return type == "ROOT::RNTuple";
}

/// The class of RNTuples before version 1.0 of their format.
inline bool IsOldNTuple(const std::string &type)
{
   return type == "ROOT::Experimental::RNTuple";
}

/// A chain is no tree of its file: it reads other files.
inline bool IsTree(const std::string &type)
{
   auto *description = TClass::GetClass(type.c_str());
   return description && description->InheritsFrom("TTree") && !description->InheritsFrom("TChain");
}

/// The newest key of a folder with one of two spellings: a name, or a name with a cycle ("T;1").
template <typename Accepts>
TKey *FindKey(TDirectory &folder, const std::string &name, Accepts accepts)
{
   const auto end = name.rfind(';');
   const std::string cycle = end == std::string::npos ? "" : name.substr(end + 1);
   const bool numbered = !cycle.empty() && cycle.find_first_not_of("0123456789") == std::string::npos;
   TKey *newest = nullptr;
   for (auto *object : *folder.GetListOfKeys()) {
      auto *key = static_cast<TKey *>(object);
      const bool same = name == key->GetName() || (numbered && name.compare(0, end, key->GetName()) == 0 &&
                                                   cycle == std::to_string(key->GetCycle()));
      if (same && accepts(std::string(key->GetClassName())) && (!newest || newest->GetCycle() < key->GetCycle()))
         newest = key;
   }
   return newest;
}

/// The keys that a path can mean.  A name may contain slashes, and a folder may have the name of a
/// tree; hence every way to split the path is tried.  TDirectory::Get knows one way only.
template <typename Accepts>
void CollectKeys(TDirectory &folder, const std::string &path, Accepts accepts, std::vector<TKey *> &keys)
{
   if (auto *key = FindKey(folder, path, accepts))
      keys.push_back(key);
   for (auto slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1))
      if (auto *key = FindKey(folder, path.substr(0, slash), IsFolder))
         if (auto *inner = key->ReadObject<TDirectory>())
            CollectKeys(*inner, path.substr(slash + 1), accepts, keys);
}

/// The key of a tree or an RNTuple; null if there is none.
template <typename Accepts>
TKey *FindObject(TDirectory &file, const std::string &path, Accepts accepts)
{
   std::vector<TKey *> keys;
   CollectKeys(file, path.substr(std::min(path.size(), path.find_first_not_of('/'))), accepts, keys);
   if (keys.size() > 1)
      throw std::runtime_error("the path '" + path + "' means several objects, as a name contains a slash: rename one");
   return keys.empty() ? nullptr : keys.front();
}

/// Whether a file has an RNTuple, or a tree, of this path.
inline bool FindPath(TDirectory *file, const std::string &path, bool ntuple)
{
   return ntuple ? FindObject(*file, path, IsNTuple) : FindObject(*file, path, IsTree);
}

/// Whether TDirectory::Get, with which RDataFrame looks, finds an accepted object at this path: it splits the
/// path at each slash, and takes the newest object of a name whatever its class.
template <typename Accepts>
bool IsFoundByGet(TDirectory &folder, const std::string &path, Accepts accepts)
{
   const auto slash = path.find('/');
   TKey *key = FindKey(folder, path.substr(0, slash), [](const std::string &) { return true; });
   if (!key || slash == std::string::npos)
      return key && accepts(std::string(key->GetClassName()));
   auto *inner = IsFolder(key->GetClassName()) ? key->ReadObject<TDirectory>() : nullptr;
   return inner && IsFoundByGet(*inner, path.substr(slash + 1), accepts);
}

using ObjectList = std::vector<std::pair<std::string, std::string>>;

/// Append paths and classes of all objects but folders.
inline void ListObjects(TDirectory &folder, const std::string &prefix, ObjectList &objects)
{
   for (auto *object : *folder.GetListOfKeys()) {
      auto *key = static_cast<TKey *>(object);
      const std::string path = prefix + key->GetName();
      auto *inner = IsFolder(key->GetClassName()) ? key->ReadObject<TDirectory>() : nullptr;
      if (inner)
         ListObjects(*inner, path + "/", objects);
      else
         objects.emplace_back(path, key->GetClassName());
   }
}

/// Paths and classes of a file's objects.
inline ObjectList ListContents(TDirectory &file)
{
   ObjectList objects;
   ListObjects(file, "", objects);
   return objects;
}

// --- Trees ------------------------------------------------------------------------------------------

struct FriendTrees {
   std::vector<std::string> names; // "TREE", or "TREE of FILE"
   bool in_other_files = false;
};

/// Remove the friends that lie with a tree in its file, before the tree reads them with each entry;
/// return their names.  Their files are not opened.
inline FriendTrees DetachFriends(TTree &tree)
{
   FriendTrees found;
   auto *friends = tree.GetListOfFriends();
   if (!friends)
      return found;
   for (auto *object : *friends) {
      auto *element = static_cast<TFriendElement *>(object);
      const std::string name = element->GetTreeName(), file = element->GetTitle();
      found.names.push_back(file.empty() ? name : name + " of " + file);
      // ROOT looks for a friend without a file in that of its tree; of a chain it has written the name alone.
      auto *home = tree.GetCurrentFile();
      const bool is_here = file.empty() && home && IsFoundByGet(*home, name, IsTree);
      found.in_other_files = found.in_other_files || !is_here;
   }
   friends->Delete();
   return found;
}

/// Friend trees that a data frame follows, which opens them with the tree.
struct FollowedFriends {
   std::vector<std::string> foreign; // all friends of a tree of which some lie in other files
   std::vector<std::string> indexed; // the first entry is then read while the file is opened
};

/// Follow the friends of a tree, and of the friends that lie in its file.
inline void FollowFriends(TDirectory &file, const FriendTrees &friends, std::set<std::string> &visited,
                          FollowedFriends &followed)
{
   if (friends.in_other_files && followed.foreign.empty())
      followed.foreign = friends.names;
   for (const auto &name : friends.names) {
      auto *tree = visited.insert(name).second ? file.Get<TTree>(name.c_str()) : nullptr;
      if (tree && tree->GetTreeIndex())
         followed.indexed.push_back(name);
      if (tree)
         FollowFriends(file, DetachFriends(*tree), visited, followed);
   }
}

/// Read a tree without its friends, which are added to a list; null if it cannot be read.  Python opens
/// the files of a tree's friends already to find out whether it is null.
inline TTree *ReadTree(TKey &key, FriendTrees &friends)
{
   auto *tree = key.ReadObject<TTree>();
   if (tree)
      friends = DetachFriends(*tree);
   return tree;
}

/// The type of a member that a branch holds, by the description in the file.
inline std::string MemberType(TBranchElement &branch)
{
   if (branch.GetID() < 0) // an object of its own
      return branch.GetClassName();
   std::string name = branch.GetName();
   name = name.substr(0, name.find('['));
   const auto dot = name.rfind('.');
   auto *info = branch.GetInfo();
   auto *element = static_cast<TStreamerElement *>(
      info ? info->GetElements()->FindObject(name.substr(dot == std::string::npos ? 0 : dot + 1).c_str()) : nullptr);
   if (!element)
      return branch.GetClassName(); // TBranchElement::GetTypeName crashes on the codes of some old files
   const int length = element->GetArrayLength();
   return element->GetTypeName() + (length > 1 ? "[" + std::to_string(length) + "]" : std::string());
}

/// The type of a leaf; the greatest length of a text or of an array of variable length is no part of it.
inline std::string LeafType(TLeaf &leaf)
{
   std::string type = leaf.GetTypeName();
   if (std::strcmp(leaf.ClassName(), "TLeafC") == 0)
      return "text";
   if (auto *counter = leaf.GetLeafCount())
      type += std::string("[") + counter->GetName() + "]";
   return leaf.GetLenStatic() > 1 ? type + "[" + std::to_string(leaf.GetLenStatic()) + "]" : type;
}

using BranchTypes = std::vector<std::pair<std::string, std::string>>;

/// Append path and type of a branch and of all below it.
inline void CollectTypes(TBranch &branch, const std::string &prefix, BranchTypes &types)
{
   const std::string path = prefix + branch.GetName();
   if (auto *element = dynamic_cast<TBranchElement *>(&branch))
      types.emplace_back(path, MemberType(*element));
   else if (branch.GetListOfLeaves()->GetEntriesFast() == 1)
      types.emplace_back(path, LeafType(*static_cast<TLeaf *>(branch.GetListOfLeaves()->First())));
   else {
      std::string type;
      for (auto *object : *branch.GetListOfLeaves())
         type += (type.empty() ? "" : ", ") + std::string(object->GetName()) + " " +
                 LeafType(*static_cast<TLeaf *>(object));
      types.emplace_back(path, type);
   }
   for (auto *child : *branch.GetListOfBranches())
      CollectTypes(*static_cast<TBranch *>(child), path + "/", types);
}

/// Append the branches whose baskets lie in another file (TBranch::SetFile), with its name.  A name
/// without a folder is one in the folder of the tree's own file.
inline void CollectForeign(TBranch &branch, const std::string &prefix, const std::string &file, BranchTypes &foreign)
{
   const std::string path = prefix + branch.GetName(), name = branch.GetFileName();
   if (!name.empty() && name != file && name != file.substr(file.rfind('/') + 1))
      foreign.emplace_back(path, name);
   for (auto *child : *branch.GetListOfBranches())
      CollectForeign(*static_cast<TBranch *>(child), path + "/", file, foreign);
}

/// Name the branches of a tree that need a file beside its own; '' if there are none.  That file is not
/// opened.
inline std::string DescribeForeignBranches(TTree &tree)
{
   BranchTypes foreign;
   for (auto *object : *tree.GetListOfBranches())
      CollectForeign(*static_cast<TBranch *>(object), "", tree.GetCurrentFile()->GetName(), foreign);
   if (foreign.empty())
      return {};
   const auto more = foreign.size() - 1;
   return "branch '" + foreign[0].first + "'" + (more ? " and " + std::to_string(more) + " more" : "") +
          " of the tree '" + tree.GetName() + (more ? "' lie" : "' lies") + " in another file, '" + foreign[0].second +
          "', which is none of the dataset's: write all of it into one file with RDataFrame::Snapshot (hadd does not)";
}

/// The entries of the longest branch, below others or not.
inline Long64_t MaxEntries(TObjArray &branches)
{
   Long64_t entries = 0;
   for (auto *object : branches) {
      auto *branch = static_cast<TBranch *>(object);
      entries = std::max({entries, branch->GetEntries(), MaxEntries(*branch->GetListOfBranches())});
   }
   return entries;
}

using BranchLengths = std::vector<std::pair<std::string, Long64_t>>;

/// Append the branches with another number of entries than their tree.  A branch that is split holds
/// nothing itself, and need not count.
inline void CollectLengths(TBranch &branch, const std::string &prefix, Long64_t tree_entries, BranchLengths &lengths)
{
   const std::string path = prefix + branch.GetName();
   const bool split = branch.GetListOfBranches()->GetEntriesFast() && !branch.GetTotBytes();
   if (!split && branch.GetEntries() != tree_entries)
      lengths.emplace_back(path, branch.GetEntries());
   for (auto *child : *branch.GetListOfBranches())
      CollectLengths(*static_cast<TBranch *>(child), path + "/", tree_entries, lengths);
}

inline BranchLengths FindOtherLengths(TTree &tree)
{
   BranchLengths lengths;
   for (auto *object : *tree.GetListOfBranches())
      CollectLengths(*static_cast<TBranch *>(object), "", tree.GetEntries(), lengths);
   return lengths;
}

} // namespace treehammer
#endif
