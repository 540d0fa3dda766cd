// Reads an RNTuple's fields one after the other, entry by entry. The kit's header of fields must be
// compiled before.
#ifndef TREEHAMMER_NTUPLE_PROBE
#define TREEHAMMER_NTUPLE_PROBE

#include "current_read.hpp"

#include <ROOT/RNTupleReadOptions.hxx>

#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace treehammer {

/// Names and types of the fields that represent branches.
inline std::vector<std::pair<std::string, std::string>> ListFields(TFile *file, const std::string &name)
{
   std::vector<std::pair<std::string, std::string>> found;
   const auto reader = OpenNTuple(file, name, {});
   for (const auto &field : NTupleFields(reader->GetDescriptor()))
      found.emplace_back(field.name, reader->GetDescriptor().GetFieldDescriptor(field.id).GetTypeName());
   return found;
}

/// Read all entries of some fields, and keep the current read at an address. Returns the failed ones with
/// their messages; others are read on.
inline std::map<int, std::string>
ReadFields(TFile *file, const std::string &name, const std::vector<int> &positions, std::uintptr_t current)
{
   CurrentRead state(current);
   std::map<int, std::string> failed;
   const auto attempt = [&](int at, auto &&read) {
      state.SetPosition(at);
      try {
         read();
      } catch (const std::exception &error) {
         failed.emplace(at, ReaderMessage(error));
      }
   };
   // Without a thread that reads ahead, a crash happens where the field is read.
   ROOT::RNTupleReadOptions options;
   options.SetClusterCache(ROOT::RNTupleReadOptions::EClusterCache::kOff);
   const auto reader = OpenNTuple(file, name, options);
   const auto fields = NTupleFields(reader->GetDescriptor());
   std::map<int, ROOT::RNTupleView<void>> views;
   for (int at : positions)
      attempt(at, [&] { views.emplace(at, reader->GetView<void>(fields[at].id)); });
   for (auto entry : reader->GetEntryRange()) {
      state.SetStep(entry, reader->GetNEntries());
      for (auto &item : views)
         if (!failed.count(item.first))
            attempt(item.first, [&] { item.second(entry); });
   }
   return failed;
}

} // namespace treehammer

#endif
