// An RNTuple's fields, mapped to the branches of the TTree with the same content.
#ifndef TREEHAMMER_NTUPLE_FIELDS
#define TREEHAMMER_NTUPLE_FIELDS
#pragma cling optimize(2)

#include "file_objects.hpp"

#include <ROOT/RField.hxx>
#include <ROOT/RNTuple.hxx>
#include <ROOT/RNTupleDescriptor.hxx>
#include <ROOT/RNTupleReader.hxx>
#include <ROOT/RNTupleView.hxx>

#include <TFile.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace treehammer {

struct MissingObject : std::runtime_error {
   using std::runtime_error::runtime_error;
};

/// The anchor of an RNTuple; its folder may be any.
inline std::unique_ptr<ROOT::RNTuple> FindAnchor(TFile &file, const std::string &path)
{
   auto *key = FindObject(file, path, IsNTuple);
   if (!key && FindObject(file, path, IsOldNTuple))
      throw std::runtime_error("the RNTuple '" + path +
                               "' was written before version 1.0 of the format (class ROOT::Experimental::RNTuple), "
                               "which no ROOT since 6.34 reads: write it anew with ROOT 6.34 or later");
   std::unique_ptr<ROOT::RNTuple> anchor(key ? key->ReadObject<ROOT::RNTuple>() : nullptr);
   if (!anchor)
      throw MissingObject("no RNTuple '" + path + "'");
   return anchor;
}

/// Create a reader of an RNTuple in an open file.
inline std::unique_ptr<ROOT::RNTupleReader>
OpenNTuple(TFile *file, const std::string &name, const ROOT::RNTupleReadOptions &options)
{
   return ROOT::RNTupleReader::Open(*FindAnchor(*file, name), options);
}

/// The message of one of the reader's exceptions, without its places in ROOT.
inline std::string ReaderMessage(const std::exception &error)
{
   const std::string text = error.what(), place = " (unchecked RResult access!)";
   const auto end = std::min(text.find('\n'), text.find(place));
   return text.substr(0, end);
}

struct NTupleField {
   std::string name; // of the branch
   ROOT::DescriptorId_t id = 0;
   std::vector<std::string> counters; // with the sizes of its arrays, as in a TTree
   BranchTypes types;                 // of the field and of all below it, by path
};

/// The name of the branch that a field represents.  A field's name cannot contain a dot; where one was
/// replaced by an underscore, the field's description may keep the branch's name.
inline std::string BranchName(const ROOT::RFieldDescriptor &field)
{
   std::string plain = field.GetFieldDescription();
   std::replace(plain.begin(), plain.end(), '.', '_');
   return plain == field.GetFieldName() ? field.GetFieldDescription() : field.GetFieldName();
}

/// The top-level field that contains a field.
inline ROOT::DescriptorId_t TopLevel(const ROOT::RNTupleDescriptor &descriptor, ROOT::DescriptorId_t field)
{
   for (;;) {
      const auto parent = descriptor.GetFieldDescriptor(field).GetParentId();
      if (parent == descriptor.GetFieldZeroId())
         return field;
      field = parent;
   }
}

/// Append path and type of a field and of all below it.
inline void CollectTypes(const ROOT::RNTupleDescriptor &descriptor, const ROOT::RFieldDescriptor &field,
                         const std::string &prefix, BranchTypes &types)
{
   const std::string path = prefix + field.GetFieldName();
   types.emplace_back(path, field.GetTypeName());
   for (const auto &child : descriptor.GetFieldIterable(field))
      CollectTypes(descriptor, child, path + "/", types);
}

/// The top-level fields that represent branches.  Arrays with a common counter are stored in an untyped
/// collection ("_collection0"); its members and its size are projected to fields with the branches'
/// names, so the collection itself is skipped.
inline std::vector<NTupleField> NTupleFields(const ROOT::RNTupleDescriptor &descriptor)
{
   std::map<ROOT::DescriptorId_t, std::string> counters; // collection -> its projected size
   std::map<ROOT::DescriptorId_t, ROOT::DescriptorId_t> sources; // projected -> collection
   for (const auto &field : descriptor.GetTopLevelFields())
      if (field.IsProjectedField()) {
         const auto source = TopLevel(descriptor, field.GetProjectionSourceId());
         if (field.GetTypeName().rfind("ROOT::RNTupleCardinality<", 0) == 0)
            counters[source] = BranchName(field);
         else
            sources[field.GetId()] = source;
      }
   std::set<ROOT::DescriptorId_t> projected;
   for (const auto &item : counters)
      projected.insert(item.first);
   for (const auto &item : sources)
      projected.insert(item.second);
   std::vector<NTupleField> found;
   for (const auto &field : descriptor.GetTopLevelFields()) {
      if (field.GetTypeName().empty() && projected.count(field.GetId()))
         continue;
      found.push_back({BranchName(field), field.GetId(), {}, {}});
      CollectTypes(descriptor, field, "", found.back().types);
      const auto source = sources.find(field.GetId());
      if (source != sources.end() && counters.count(source->second))
         found.back().counters.push_back(counters[source->second]);
   }
   return found;
}

inline void CollectColumns(const ROOT::RNTupleDescriptor &descriptor, ROOT::DescriptorId_t field,
                           std::set<ROOT::DescriptorId_t> &physical)
{
   for (const auto &column : descriptor.GetColumnIterable(field))
      physical.insert(column.GetPhysicalId());
   for (const auto &child : descriptor.GetFieldIterable(field))
      CollectColumns(descriptor, child.GetId(), physical);
}

constexpr std::uint64_t kPageChecksum = 8; // bytes of an XxHash-3

/// Call `count(cluster, bytes)` for each page of some columns that lies in the file, by its compressed
/// bytes.  Equal pages are stored once: `counted` holds their positions.
template <typename Count>
void CountPages(const ROOT::RNTupleDescriptor &descriptor, const std::set<ROOT::DescriptorId_t> &physical,
                std::set<std::uint64_t> &counted, Count count)
{
   for (const auto &cluster : descriptor.GetClusterIterable())
      for (auto column : physical)
         // Of several encodings of a column, a cluster has pages of one.
         if (cluster.ContainsColumn(column) && !cluster.GetColumnRange(column).IsSuppressed())
            for (const auto &page : cluster.GetPageRange(column).GetPageInfos())
               // Pages before a field was added are not in the file.
               if (page.GetLocator().GetType() == ROOT::RNTupleLocator::kTypeFile &&
                   counted.insert(page.GetLocator().GetPosition<std::uint64_t>()).second)
                  count(cluster, page.GetLocator().GetNBytesOnStorage() + (page.HasChecksum() ? kPageChecksum : 0));
}

/// Compressed bytes of the pages of some fields, each page once.
inline long long PageBytes(const ROOT::RNTupleDescriptor &descriptor, const std::vector<NTupleField> &fields,
                           const std::vector<int> &selected)
{
   std::set<ROOT::DescriptorId_t> physical;
   for (int index : selected)
      CollectColumns(descriptor, fields[index].id, physical);
   long long bytes = 0;
   std::set<std::uint64_t> counted;
   CountPages(descriptor, physical, counted, [&](const auto &, std::uint64_t size) { bytes += size; });
   return bytes;
}

} // namespace treehammer
#endif
