// What the page of ROOT files uses of JSROOT; vendor_assets.sh makes one file of it.
export { createHistogram, createTGraph, settings } from "jsroot/modules/core.mjs";
export { openFile } from "jsroot/modules/io.mjs";
export { TSelector, treeProcess } from "jsroot/modules/tree.mjs";
export { cleanup } from "jsroot/modules/base/ObjectPainter.mjs";
export { TH1Painter } from "jsroot/modules/hist2d/TH1Painter.mjs";
export { TGraphPainter } from "jsroot/modules/hist2d/TGraphPainter.mjs";
