// Fills a TTree from columns in Arrow's memory layout.  Compiled by ROOT's interpreter in the
// process that treehammer/sql/root_writer.py runs in.
#pragma cling optimize(2)

#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <TBranch.h>
#include <TTree.h>

namespace treehammer {

// One column of one record batch: addresses that stay valid while the batch lives.
struct ArrowColumn {
   const std::uint8_t *validity = nullptr; // one bit a row; none when every row has a value
   const std::int32_t *offsets = nullptr;  // texts and lists: where each row begins
   const void *data = nullptr;
   std::int64_t first = 0;     // rows to skip
   std::int64_t firstItem = 0; // lists: items to skip

   bool isValid(std::int64_t row) const
   {
      return !validity || ((validity[(row + first) / 8] >> ((row + first) % 8)) & 1);
   }
};

class Column {
public:
   virtual ~Column() = default;
   virtual TBranch *attach(TTree &tree, const char *name) = 0;
   virtual void load(std::int64_t row) = 0;
   // Whether what was loaded is a value that stands for "not known" elsewhere.
   virtual bool looksUnknown() const { return false; }

   std::string name;
   bool known = false; // whether there is a value in the row that was loaded
   ArrowColumn input;
};

template <class T>
class NumberColumn : public Column {
public:
   TBranch *attach(TTree &tree, const char *name) override { return tree.Branch(name, &fValue); }
   void load(std::int64_t row) override
   {
      known = input.isValid(row);
      fValue = known ? static_cast<const T *>(input.data)[row + input.first] : kUnknown;
   }
   bool looksUnknown() const override { return fValue == kUnknown; }

private:
   static constexpr T kUnknown = std::is_floating_point<T>::value
                                    ? std::numeric_limits<T>::quiet_NaN()
                                    : std::numeric_limits<T>::min();
   T fValue{};
};

class FlagColumn : public Column {
public:
   TBranch *attach(TTree &tree, const char *name) override { return tree.Branch(name, &fValue); }
   void load(std::int64_t row) override
   {
      const auto bits = static_cast<const std::uint8_t *>(input.data);
      const auto bit = row + input.first;
      fValue = input.isValid(row) ? (bits[bit / 8] >> (bit % 8)) & 1 : 255;
   }

private:
   UChar_t fValue{};
};

class TextColumn : public Column {
public:
   TBranch *attach(TTree &tree, const char *name) override { return tree.Branch(name, &fValue); }
   void load(std::int64_t row) override
   {
      fValue.clear();
      if (!input.isValid(row))
         return;
      const auto begin = input.offsets[row + input.first];
      const auto end = input.offsets[row + input.first + 1];
      fValue.assign(static_cast<const char *>(input.data) + begin, end - begin);
   }

private:
   std::string fValue;
};

template <class T>
class ListColumn : public Column {
public:
   TBranch *attach(TTree &tree, const char *name) override { return tree.Branch(name, &fValue); }
   void load(std::int64_t row) override
   {
      fValue.clear();
      known = input.isValid(row);
      if (!known)
         return;
      const auto items = static_cast<const T *>(input.data) + input.firstItem;
      fValue.assign(items + input.offsets[row + input.first],
                    items + input.offsets[row + input.first + 1]);
   }
   bool looksUnknown() const override { return fValue.empty(); }

private:
   std::vector<T> fValue;
};

class TreeFiller {
public:
   explicit TreeFiller(TTree &tree) : fTree(tree) {}

   // Adds the branch of a column; kind is one of bool, int, float, text, ints, floats.
   void addColumn(const std::string &name, const std::string &kind, const std::string &title)
   {
      auto column = make(kind);
      auto branch = column->attach(fTree, name.c_str());
      if (!branch)
         throw std::runtime_error("cannot make branch " + name);
      branch->SetTitle(title.c_str());
      column->name = name;
      fColumns.push_back(std::move(column));
   }

   // Adds a branch that names the columns of a row, by commas, whose value only looks unknown.
   void addLookingUnknown(const std::string &name, const std::string &title)
   {
      fTree.Branch(name.c_str(), &fLookingUnknown)->SetTitle(title.c_str());
   }

   // Points a column at its part of the next record batch.
   void setInput(std::size_t column, std::uintptr_t validity, std::uintptr_t offsets,
                 std::uintptr_t data, std::int64_t first, std::int64_t firstItem)
   {
      fColumns.at(column)->input = {reinterpret_cast<const std::uint8_t *>(validity),
                                    reinterpret_cast<const std::int32_t *>(offsets),
                                    reinterpret_cast<const void *>(data), first, firstItem};
   }

   // Writes the rows of the record batch that setInput described.
   void fill(std::int64_t rows)
   {
      for (std::int64_t row = 0; row < rows; ++row) {
         fLookingUnknown.clear();
         for (auto &column : fColumns) {
            column->load(row);
            if (column->known && column->looksUnknown())
               fLookingUnknown += (fLookingUnknown.empty() ? "" : ",") + column->name;
         }
         if (fTree.Fill() < 0)
            throw std::runtime_error("the file cannot be written to");
      }
   }

private:
   static std::unique_ptr<Column> make(const std::string &kind)
   {
      if (kind == "bool")
         return std::make_unique<FlagColumn>();
      if (kind == "int")
         return std::make_unique<NumberColumn<Long64_t>>();
      if (kind == "float")
         return std::make_unique<NumberColumn<Double_t>>();
      if (kind == "text")
         return std::make_unique<TextColumn>();
      if (kind == "ints")
         return std::make_unique<ListColumn<Long64_t>>();
      if (kind == "floats")
         return std::make_unique<ListColumn<Double_t>>();
      throw std::runtime_error("unknown kind of column " + kind);
   }

   TTree &fTree;
   std::string fLookingUnknown;
   std::vector<std::unique_ptr<Column>> fColumns;
};

} // namespace treehammer
