// Measures how an RNTuple lies in its file.  Needs the kit's header of that name, for the fields.
#pragma once

#include "layout.hpp"

#include <ROOT/RNTupleDescriptor.hxx>
#include <ROOT/RNTupleInspector.hxx>

#include <string>

namespace treehammer {

class NTupleMeasure {
   using Inspector = ROOT::Experimental::RNTupleInspector;

public:
   explicit NTupleMeasure(const ROOT::RNTuple &anchor)
      : fInspector(Inspector::Create(anchor)), fDescriptor(fInspector->GetDescriptor())
   {
      layout.entries = static_cast<Long64_t>(fDescriptor.GetNEntries());
      layout.byEntry = layout.byBranch = false; // of baskets
      for (const auto &found : NTupleFields(fDescriptor)) {
         const auto &field = fDescriptor.GetFieldDescriptor(found.id);
         layout.unzipped.push_back(0);
         layout.zipped.push_back(0);
         layout.embedded.push_back(0);
         // A projected array shares its offsets with others: they count for the projected counter.
         const bool counter = field.GetTypeName().rfind("ROOT::RNTupleCardinality", 0) == 0;
         addColumns(field, !field.IsProjectedField() || counter);
      }
      for (const auto &cluster : fDescriptor.GetClusterIterable())
         layout.clusters.push_back(static_cast<Long64_t>(cluster.GetNBytesOnStorage()));
   }

   Layout layout;

private:
   void addColumns(const ROOT::RFieldDescriptor &field, bool own)
   {
      for (const auto &column : fDescriptor.GetColumnIterable(field)) {
         if (!own)
            break;
         const auto &found = fInspector->GetColumnInspector(column.GetPhysicalId());
         layout.unzipped.back() += static_cast<Long64_t>(found.GetUncompressedSize());
         layout.zipped.back() += static_cast<Long64_t>(found.GetCompressedSize());
         for (const auto size : found.GetCompressedPageSizes())
            layout.baskets.push_back(static_cast<Long64_t>(size));
      }
      for (const auto &child : fDescriptor.GetFieldIterable(field))
         addColumns(child, true);
   }

   std::unique_ptr<Inspector> fInspector;
   const ROOT::RNTupleDescriptor &fDescriptor;
};

inline Layout measureNTuple(TFile *file, const std::string &name)
{
   return NTupleMeasure(*FindAnchor(*file, name)).layout;
}

/// The fields that represent branches.
inline std::vector<NTupleField> ListNTupleFields(TFile *file, const std::string &name)
{
   return NTupleFields(OpenNTuple(file, name, {})->GetDescriptor());
}

} // namespace treehammer
