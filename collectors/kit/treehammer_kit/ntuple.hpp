// An RNTuple's fields as the branches of the TTree that it is the twin of.
#ifndef TREEHAMMER_NTUPLE
#define TREEHAMMER_NTUPLE
#pragma cling optimize(2)

#include <ROOT/RField.hxx>
#include <ROOT/RNTuple.hxx>
#include <ROOT/RNTupleDescriptor.hxx>
#include <ROOT/RNTupleReader.hxx>
#include <ROOT/RNTupleView.hxx>

#include <TFile.h>

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace treehammer {

/// A reader of what lies in an open file.
inline std::unique_ptr<ROOT::RNTupleReader>
OpenNTuple(TFile *file, const std::string &name, const ROOT::RNTupleReadOptions &options)
{
   std::unique_ptr<ROOT::RNTuple> anchor(file->Get<ROOT::RNTuple>(name.c_str()));
   if (!anchor)
      throw std::runtime_error("no RNTuple '" + name + "'");
   return ROOT::RNTupleReader::Open(*anchor, options);
}

struct NTupleField {
   std::string name;
   ROOT::DescriptorId_t id = 0;
};

/// The top-level field that a field lies in.
inline ROOT::DescriptorId_t TopLevel(const ROOT::RNTupleDescriptor &descriptor, ROOT::DescriptorId_t field)
{
   for (;;) {
      const auto parent = descriptor.GetFieldDescriptor(field).GetParentId();
      if (parent == descriptor.GetFieldZeroId())
         return field;
      field = parent;
   }
}

/// The top-level fields that stand for branches.  Arrays that share a counter lie together in an
/// untyped collection ("_collection0"); its members and its size are projected to fields of the
/// branches' names, so the collection itself is left out.
inline std::vector<NTupleField> NTupleFields(const ROOT::RNTupleDescriptor &descriptor)
{
   std::set<ROOT::DescriptorId_t> sources;
   for (const auto &field : descriptor.GetTopLevelFields())
      if (field.IsProjectedField())
         sources.insert(TopLevel(descriptor, field.GetProjectionSourceId()));
   std::vector<NTupleField> found;
   for (const auto &field : descriptor.GetTopLevelFields())
      if (!field.GetTypeName().empty() || !sources.count(field.GetId()))
         found.push_back({field.GetFieldName(), field.GetId()});
   return found;
}

} // namespace treehammer
#endif
