// Measures how an RNTuple lies in its file.  Needs the kit's header of that name, for the fields.
#pragma once

#include "layout.hpp"

#include <ROOT/RNTupleDescriptor.hxx>
#include <ROOT/RNTupleInspector.hxx>

#include <map>
#include <memory>
#include <set>
#include <string>

namespace treehammer {

/// Measures each column and each page once: as those of the field that stores them, and of the first
/// projection of a field that is none of the branches.
class NTupleMeasure {
   using Inspector = ROOT::Experimental::RNTupleInspector;

public:
   explicit NTupleMeasure(const ROOT::RNTuple &anchor)
      : fInspector(Inspector::Create(anchor)), fDescriptor(fInspector->GetDescriptor())
   {
      layout.entries = static_cast<Long64_t>(fDescriptor.GetNEntries());
      layout.byEntry = layout.byBranch = false; // of baskets
      for (const auto &cluster : fDescriptor.GetClusterIterable())
         fClusterBytes[cluster.GetId()] = 0;
      const auto fields = NTupleFields(fDescriptor);
      layout.unzipped.resize(fields.size());
      layout.zipped.resize(fields.size());
      layout.embedded.resize(fields.size());
      // A projected counter of arrays comes before them, which share its offsets.
      for (const int rank : {0, 1, 2})
         for (std::size_t at = 0; at < fields.size(); ++at)
            if (rankOf(fDescriptor.GetFieldDescriptor(fields[at].id)) == rank)
               addColumns(fields[at], at);
      for (const auto &cluster : fClusterBytes)
         layout.clusters.push_back(cluster.second);
   }

   Layout layout;

private:
   static int rankOf(const ROOT::RFieldDescriptor &field)
   {
      if (!field.IsProjectedField())
         return 0;
      return field.GetTypeName().rfind("ROOT::RNTupleCardinality", 0) == 0 ? 1 : 2;
   }

   void addColumns(const NTupleField &field, std::size_t at)
   {
      std::set<ROOT::DescriptorId_t> columns;
      CollectColumns(fDescriptor, field.id, columns);
      for (const auto column : columns)
         if (fColumns.insert(column).second)
            layout.unzipped[at] += countElements(column) * fInspector->GetColumnInspector(column).GetElementSize();
      CountPages(fDescriptor, columns, fPages, [&](const auto &cluster, std::uint64_t bytes) {
         layout.zipped[at] += bytes;
         layout.baskets.push_back(bytes);
         fClusterBytes[cluster.GetId()] += bytes;
      });
   }

   /// Elements that lie in the file: not those before a field was added, which readers take as zeros.
   Long64_t countElements(ROOT::DescriptorId_t column) const
   {
      Long64_t elements = 0;
      for (const auto &cluster : fDescriptor.GetClusterIterable())
         if (cluster.ContainsColumn(column) && !cluster.GetColumnRange(column).IsSuppressed())
            for (const auto &page : cluster.GetPageRange(column).GetPageInfos())
               if (page.GetLocator().GetType() == ROOT::RNTupleLocator::kTypeFile)
                  elements += page.GetNElements();
      return elements;
   }

   std::unique_ptr<Inspector> fInspector;
   const ROOT::RNTupleDescriptor &fDescriptor;
   std::set<ROOT::DescriptorId_t> fColumns;
   std::set<std::uint64_t> fPages;
   std::map<ROOT::DescriptorId_t, Long64_t> fClusterBytes;
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
