// Checksum of an RNTuple's values, equal to that of a TTree with the same content.
#ifndef TREEHAMMER_NTUPLE_CHECKSUM
#define TREEHAMMER_NTUPLE_CHECKSUM

#include "ntuple.hpp"
#include "values.hpp"

#include <ROOT/RVec.hxx>

namespace treehammer {

class NTupleChecksum : public ValueHashes {
   using Locate = std::function<const void *()>; // address of the current entry's value

   static bool Is(const std::string &text, const char *start) { return text.rfind(start, 0) == 0; }

   template <typename T>
   static void FeedFixed(uint64_t &hash, const void *holder, std::size_t length)
   {
      FeedNumbers(hash, static_cast<const T *>(holder), length);
   }

   template <typename T>
   static void FeedCollection(uint64_t &hash, const void *holder, std::size_t)
   {
      FeedValue(hash, *static_cast<const T *>(holder));
   }

   template <typename T>
   void CoverFixed(const std::string &name, const Locate &where, std::size_t length)
   {
      fLeaves.push_back({name, KindOf<T>(), where, FeedFixed<T>, length});
   }

   template <typename T>
   void Cover(const std::string &name, const Locate &where)
   {
      fLeaves.push_back({name, KindOf<T>(), where, FeedCollection<T>});
   }

   /// Cover one number, an array of numbers, or collections of numbers in memory.
   template <typename T>
   bool CoverNumbers(const ROOT::RFieldBase &field, const std::string &name, const Locate &where)
   {
      const auto &type = field.GetTypeName();
      const auto &item = Element(field).GetTypeName();
      if (item != ROOT::RField<T>::TypeName())
         return false;
      if (const auto length = FixedLength(field))
         CoverFixed<T>(name, where, length);
      else if (type == "std::vector<" + item + ">")
         Cover<std::vector<T>>(name, where);
      else if (type == "ROOT::VecOps::RVec<" + item + ">")
         Cover<ROOT::RVec<T>>(name, where);
      else
         return false;
      return true;
   }

   /// The element field of a collection or an array; otherwise the field itself.
   static const ROOT::RFieldBase &Element(const ROOT::RFieldBase &field)
   {
      const auto &type = field.GetTypeName();
      const bool many = Is(type, "std::array<") || Is(type, "std::vector<") || Is(type, "ROOT::VecOps::RVec<");
      return many ? *field.GetConstSubfields().front() : field;
   }

   /// The fixed number of numbers in a scalar or an array; 0 for a collection.
   static std::size_t FixedLength(const ROOT::RFieldBase &field)
   {
      if (Is(field.GetTypeName(), "std::array<"))
         return field.GetNRepetitions();
      return field.GetConstSubfields().empty() ? 1 : 0;
   }

   template <typename... T>
   bool CoverAny(const ROOT::RFieldBase &field, const std::string &name, const Locate &where)
   {
      return (CoverNumbers<T>(field, name, where) || ...);
   }

   bool CoverField(const ROOT::RFieldBase &field, const std::string &name, const Locate &where)
   {
      const auto &type = field.GetTypeName();
      if (type == "std::string")
         Cover<std::string>(name, where);
      else if (type == "std::vector<std::string>")
         Cover<std::vector<std::string>>(name, where);
      else if (type == "ROOT::RNTupleCardinality<std::uint32_t>")
         CoverFixed<std::uint32_t>(name, where, 1);
      else if (type == "ROOT::RNTupleCardinality<std::uint64_t>")
         CoverFixed<std::uint64_t>(name, where, 1);
      else
         return CoverAny<bool, char, std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t,
                         std::uint32_t, std::int64_t, std::uint64_t, float, double>(field, name, where) ||
                CoverRecord(field, name, where);
      return true;
   }

   /// Cover the members of an untyped record, the counterpart of a branch with several leaves.
   bool CoverRecord(const ROOT::RFieldBase &field, const std::string &name, const Locate &where)
   {
      auto *record = dynamic_cast<const ROOT::RRecordField *>(&field);
      if (!record || !field.GetTypeName().empty())
         return false;
      const auto members = record->GetConstSubfields();
      for (std::size_t i = 0; i < members.size(); ++i) {
         const auto offset = record->GetOffsets()[i];
         CoverOrName(*members[i], name + "." + members[i]->GetFieldName(),
                     [where, offset] { return static_cast<const char *>(where()) + offset; });
      }
      return true;
   }

   void CoverOrName(const ROOT::RFieldBase &field, const std::string &name, const Locate &where)
   {
      if (!CoverField(field, name, where))
         uncovered.push_back(name + " (" + field.GetTypeName() + ")");
   }

   /// Connect the fields whose types ROOT knows; name the others.
   std::vector<ROOT::RNTupleView<void>> ConnectFields(ROOT::RNTupleReader &reader)
   {
      std::vector<ROOT::RNTupleView<void>> views;
      const auto fields = NTupleFields(reader.GetDescriptor());
      branches = 0;
      for (const auto &field : fields) {
         if (IsLeftOut(field.name))
            continue;
         ++branches;
         try {
            views.push_back(reader.GetView<void>(field.id));
         } catch (const ROOT::RException &) {
            const auto &type = reader.GetDescriptor().GetFieldDescriptor(field.id).GetTypeName();
            uncovered.push_back(field.name + " (" + type + ")");
         }
      }
      return views;
   }

public:
   /// Feed all entries of one file's RNTuple; false, with a message, when an entry cannot be read.
   bool Read(TFile *file, const std::string &name)
   {
      Clear();
      try {
         auto reader = OpenNTuple(file, name, {});
         auto views = ConnectFields(*reader);
         std::vector<ROOT::RNTupleView<void> *> covered; // only these are read
         for (auto &view : views) {
            const auto before = fLeaves.size();
            CoverOrName(view.GetField(), view.GetField().GetFieldName(),
                        [value = &view.GetValue()] { return value->GetPtr<void>().get(); });
            if (fLeaves.size() > before)
               covered.push_back(&view);
         }
         Begin();
         for (auto entry : reader->GetEntryRange()) {
            for (auto *view : covered)
               (*view)(entry);
            FeedEntry();
         }
         End();
      } catch (const std::exception &error) {
         message = ReaderMessage(error);
         return false;
      }
      if (FirstError().empty())
         return true;
      message = "ROOT reported an error (" + FirstError() + ")";
      return false;
   }
};

} // namespace treehammer
#endif
